W=$(mktemp -d); mkdir -p "$W/repo" "$W/cache"; cd "$W/repo"
swamp init >/dev/null
swamp vault create local_encryption main >/dev/null
mkdir -p models/command/shell workflows

mk() {  # mk <suffix> <model id> <workflow id>
cat > models/command/shell/$2.yaml <<Y
type: command/shell
typeVersion: 2026.02.09.1
id: $2
name: long-step-$1
version: 1
tags: {}
globalArguments:
  run: "sleep 6"
methods:
  execute:
    arguments:
      run: "sleep 6"
Y
cat > workflows/workflow-$3.yaml <<Y
id: $3
name: long-$1
tags: {}
jobs:
  - name: long-job
    steps:
      - name: long-step
        task:
          type: model_method
          modelIdOrName: long-step-$1
          methodName: execute
        labels:
          pool: worker
        dependsOn: []
        weight: 0
    dependsOn: []
    weight: 0
version: 1
Y
}
# Two different models, so the model lock does not serialise the two runs.
mk a bd83a14c-75bd-43a0-bb96-5186061dd5d5 fc786c30-fb49-425e-9803-525237cd9c47
mk b 1d83a14c-75bd-43a0-bb96-5186061dd5d6 2c786c30-fb49-425e-9803-525237cd9c48

PORT=$(python3 -c 'import socket;s=socket.socket();s.bind(("127.0.0.1",0));print(s.getsockname()[1])')
swamp serve --no-schedule --port $PORT > "$W/serve.log" 2>&1 &
SERVE=$!
until curl -s -o /dev/null http://127.0.0.1:$PORT/; do sleep 0.2; done

TOKEN=$(swamp worker token create t1 --duration 1h --json \
  | python3 -c 'import sys,json;print(json.load(sys.stdin)["token"])')
swamp worker connect ws://127.0.0.1:$PORT --token "$TOKEN" --json \
  --label pool=worker --concurrency 2 --cache-dir "$W/cache" > "$W/worker.log" 2>&1 &
WORKER=$!
until grep -q enrolled "$W/worker.log"; do sleep 0.2; done

# Run 1, and wait until the worker has actually started it.
swamp workflow run long-a --server http://127.0.0.1:$PORT > "$W/run1.out" 2>&1 &
until grep -q dispatch_started "$W/worker.log"; do sleep 0.1; done
swamp worker list            # 1/2 slots in use

# Run 2 arrives while run 1 is still running.
swamp workflow run long-b --server http://127.0.0.1:$PORT; echo "run2 exit=$?"
wait %3 2>/dev/null
grep -o '"kind":"dispatch_[a-z]*"' "$W/worker.log"

kill $WORKER $SERVE

