"""Small workflows with one line of interest."""

TOP = "name: w\n"
TASK = "task: {type: model_method, modelIdOrName: m, methodName: execute}"


def top(line: str) -> str:
    return f"{TOP}{line}\njobs: [{{name: j, steps: [{{name: s, {TASK}}}]}}]\n"


def job(line: str) -> str:
    return f"{TOP}jobs:\n  - name: j\n    {line}\n    steps: [{{name: s, {TASK}}}]\n"


def step(line: str, name: str = "s", task: str = TASK) -> str:
    return (
        f"{TOP}jobs:\n  - name: j\n    steps:\n      - name: {name}\n        {task}\n"
        f"        {line}\n"
    )


def task(body: str) -> str:
    return step("weight: 0", task=f"task: {{{body}}}")


def steps(body: str) -> str:
    lines = "".join(f"      - {{{line}, {TASK}}}\n" for line in body.split("\n"))
    return f"{TOP}jobs:\n  - name: j\n    steps:\n{lines}"


def jobs(body: str) -> str:
    one = f"steps: [{{name: s, {TASK}}}]"
    return TOP + "jobs:\n" + "".join(f"  - {{{line}, {one}}}\n" for line in body.split("\n"))
