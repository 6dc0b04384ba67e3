sbatch \
    --parsable \
    --nodes=1 \
    --ntasks-per-node=1 \
    --array=0-11 \
    --job-name=s-digits-0123abcd '--output=/shared/lab'"'"'s study 100%%/jobs/s-digits-0123abcd.%a.log' \
    --open-mode=append \
    --signal=TERM@120 \
    --requeue

#!/bin/bash
set -e
export PYTHONPATH='/shared/lab'"'"'s study 100%/code/0123'${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1
INDEX=$((0 + SLURM_ARRAY_TASK_ID))
exec srun --export=ALL --nodes=1 --ntasks-per-node=1 \
    /env/bin/python -m sweeps job '/shared/lab'"'"'s study 100%/jobs/s-digits-0123abcd.json' --index="$INDEX"
