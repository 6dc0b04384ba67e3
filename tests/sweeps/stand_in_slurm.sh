#!/bin/bash
# A stand-in for sbatch, squeue, scancel, scontrol and sinfo, called by those names. Jobs stay pending.
# $STAND_IN/jobs has a line "id name" per array. What a site prints around an answer is in $STAND_IN/before
# and $STAND_IN/after; $STAND_IN/<program> is printed in place of an answer; both go to standard output.
program=$(basename "$0")
printf '%s\n' "$program $*" >> "$STAND_IN/calls"
cat "$STAND_IN/before" 2> /dev/null
for argument in "$@"; do
  case $argument in
    --jobs=*) ids=,${argument#*=}, ;;
    --name=* | --job-name=*) names=,${argument#*=}, ;;
  esac
done

answer() {
  local id name index
  case $program in
    sbatch)
      cat > "$STAND_IN/script"
      env > "$STAND_IN/environment"
      id=$((1000 + $(cat "$STAND_IN/jobs" 2> /dev/null | wc -l)))
      name=${names//,/}
      echo "$id $name" >> "$STAND_IN/jobs"
      [ -e "$STAND_IN/squeue.code_after_sbatch" ] && mv "$STAND_IN/squeue.code"{_after_sbatch,}
      if [ -e "$STAND_IN/sbatch" ]; then cat "$STAND_IN/sbatch"; else echo "$id"; fi
      ;;
    squeue)
      [ -e "$STAND_IN/squeue" ] && cat "$STAND_IN/squeue" && return
      while read -r id name; do
        grep -q "^${id}_0$" "$STAND_IN/cancelled" 2> /dev/null && continue
        [[ ${ids-,$id,} == *,$id,* && ${names-,$name,} == *,$name,* ]] &&
          for index in 0 1; do echo "$id|$index|$name|PENDING|Resources"; done
      done < <(cat "$STAND_IN/jobs" 2> /dev/null)
      ;;
    scontrol)
      [ "$2" = config ] && echo "MaxArraySize            = 1001" && return
      if grep -q "^$4_0$" "$STAND_IN/cancelled" 2> /dev/null; then echo "JobId=$4 JobState=CANCELLED"
      elif grep -q "^$4 " "$STAND_IN/jobs"; then echo "JobId=$4 JobState=PENDING"
      else
        echo "slurm_load_jobs error: Invalid job id specified" >&2
        echo 1 > "$STAND_IN/scontrol.code"
      fi
      ;;
    scancel) printf '%s\n' "$@" >> "$STAND_IN/cancelled" ;;
    sinfo) printf 'n1\nn2\n' ;;
  esac
}
answer "$@"
cat "$STAND_IN/after" 2> /dev/null
code=$(cat "$STAND_IN/$program.code" 2> /dev/null || echo 0)
[ "$program" = scontrol ] && rm -f "$STAND_IN/scontrol.code"
exit "$code"
