sbatch \
    --parsable \
    --partition=gpu,spare \
    --account=lab \
    --qos=normal \
    --time=1-00:00:00 \
    --nodes=2 \
    --ntasks-per-node=1 \
    --gres=gpu:a100:4 \
    --cpus-per-task=32 \
    --mem=200G \
    --exclude=n7,n9 \
    --array=0-499%8 \
    --job-name=s-digits-0123abcd.2 '--output=/shared/lab'"'"'s study 100%%/jobs/s-digits-0123abcd.2%3a.log' \
    --open-mode=append \
    --signal=TERM@300 \
    --requeue '--constraint=ib&a100' \
    --mail-type=END

#!/bin/bash
set -e
module load cuda
source '/opt/a b/env.sh'
export PYTHONPATH='/shared/lab'"'"'s study 100%/code/0123'${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1
INDEX=$((2000 + SLURM_ARRAY_TASK_ID))
exec srun --export=ALL --nodes=2 --ntasks-per-node=1 --cpus-per-task=32 --wait=300 '--container-image=docker://ghcr.io#jax/jax' --container-mounts=/data:/data:ro,/home \
    /opt/env/bin/python -m sweeps job '/shared/lab'"'"'s study 100%/jobs/s-digits-0123abcd.json' --index="$INDEX"
