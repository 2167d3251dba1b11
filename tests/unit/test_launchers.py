# SPDX-License-Identifier: Apache-2.0
"""Launchers: the text of their scripts is no evidence, that of a script which names its program is."""

from __future__ import annotations

import time

import pytest

from slurm_colloc.submit.launchers import LAUNCHERS, launcher_of


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("jupyter lab --no-browser --ip=0.0.0.0 --port=8888", "Jupyter"),
        ("jupyter notebook --port 9999", "Jupyter"),
        ("$CONDA_PREFIX/bin/jupyter-lab --port=1 &\nwait", "Jupyter"),
        ("python3 -u -m jupyter lab", "Jupyter"),
        ("python -m jupyterlab", "Jupyter"),
        ("srun -n 1 jupyter --debug lab", "Jupyter"),
        ("apptainer exec --nv \\\n  --bind /a:/b img.sif jupyter lab", "Jupyter"),
        ('singularity run --nv c.sif -c "conda activate e && jupyter lab --ip=127.0.0.1" && exit', "Jupyter"),
        ("hostname && nohup conda run -n e --no-capture-output jupyter-notebook > log 2>&1", "Jupyter"),
        ('RUN="jupyter lab --port 8888"\nsrun $RUN', "Jupyter"),
        ("if true; then exec jupyter lab; fi", "Jupyter"),
        ("batchspawner-singleuser jupyterhub-singleuser", "JupyterHub"),
        ("marimo edit --host 0.0.0.0", "marimo"),
        ("module load VSCode\n~/opt/vscode_cli/code tunnel --name x", "VS Code"),
        ("/opt/code-server-4/bin/code-server --auth none", "code-server"),
        ("cat > rsession.sh <<END\nexec rsession\nEND\nsingularity exec r.sif rserver --www-port 1", "RStudio"),
        ("matlab -nosplash -desktop", "MATLAB"),
        ("source_helpers () {\n:\n}\nsource_helpers\n./script.sh &\nSCRIPT_PID=$!", "Open OnDemand"),
        ("vncserver :1 -fg", "VNC"),
        ("/usr/sbin/sshd -D -p 2222 -f ~/sshd_config", "sshd"),
        ("tmux new-session -d -s main\nsleep infinity", "sleep"),
        ("hostname > ~/node\nsleep 8h", "sleep"),
        ('tmux new-session -d "bash --login"\nsleep infinity', "sleep"),
        ("python -m ipykernel -f c.json", "Jupyter"),
        ("sleep 86400", "sleep"),
        ("tail -f /dev/null", "tail"),
        ("srun --unbuffered /usr/bin/python3 -u -m submitit.core._submit /home/a/logs", "submitit"),
        ("ray start --head --port=6379 --num-gpus=1 --block", "Ray"),
        ("port=$(python -c 'import socket; print(1)')\nray start --address $1 --block", "Ray"),
        ("dask worker tcp://127.0.0.1:40001 --nthreads 1", "Dask"),
        ("/home/a/bin/python -m distributed.cli.dask_worker tcp://10.0.0.1:4000 --nthreads 8", "Dask"),
        ("hq worker start --time-limit 1h", "HyperQueue"),
        ("ipcluster engines --n 1", "ipyparallel"),
        ("process_worker_pool.py -a 127.0.0.1 -p 0 -c 1", "Parsl"),
        ("export PATH=x:$PATH\nconda run wandb agent --count 1 me/proj/k3j5x9", "Weights & Biases"),
        ("wandb agent me/proj/k3j5x9\npython after.py", "Weights & Biases"),
        ("./actions-runner/run.sh", "GitHub Actions"),
        ("java -jar agent.jar -url x", "Jenkins"),
        ("/opt/cryosparc/bin/cryosparcw run --project P1 --job J42", "CryoSPARC"),
        ("nxf_launch() {\n /bin/bash -ue .command.sh\n}", "Nextflow"),
        ('exec "${PARALLEL_SERVER_MATLAB_EXE}" ${PARALLEL_SERVER_MATLAB_ARGS}', "MATLAB Parallel Server"),
        ("""CMQ_AUTH=x R --no-save -e 'clustermq:::worker("tcp://h:1")'""", "clustermq"),
        ("ollama serve", "Ollama"),
    ],
)
def test_launcher(script: str, name: str) -> None:
    assert launcher_of(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{script}\n".encode()) == name


def test_arguments_name_a_launcher() -> None:
    text = b'#!/bin/bash\napptainer exec --nv image.sif "$@"\n'
    assert launcher_of(text, ["jupyter", "lab"]) == "Jupyter"
    assert launcher_of(text, ["python", "train.py", "jupyter", "lab"]) == ""


@pytest.mark.parametrize(
    "script",
    [
        "python train.py --logger wandb",
        "python train.py --name code-server wandb agent",
        "wandb login\nwandb online\npython train.py",
        "python - <<END\nimport ray\nray.init()\nEND",
        "ray start --head --num-gpus=1\nray job submit -- python x.py",
        "ray start --head --block &\nsleep 10\npython -u tune.py\nray stop",
        "dask scheduler &\ndask worker h:1 &\npython -m client",
        "hq worker start &\nhq submit --wait ./a.out",
        "ollama serve &\nollama run llama3 < prompts",
        "./server &\nsleep 10h",
        "bash train.sh\nsleep infinity",
        "torchrun --nproc-per-node=1 train.py\nsleep 10h",
        "accelerate launch --mixed_precision bf16 train.py && sleep 3600",
        "python -m ipykernel install --user --name e\njupyter nbconvert --execute x.ipynb",
        "tmux new-session -d -s t 'python train.py'\nsleep 10h",
        "# jupyter lab\npython train.py  # or: ; jupyter lab",
        'echo "to look on: ssh -L 1:h:1; jupyter lab"\npython train.py',
        "echo then; printf 'x; code tunnel'\npython train.py",
        "jupyter nbconvert --to notebook --execute x.ipynb",
        "papermill in.ipynb out.ipynb",
        "pip install jupyterlab code-server\npython train.py",
        "conda install -c conda-forge jupyter-lab code-server\npython train.py",
        "module load code-server rstudio-server\npython train.py",
        "cd ~/code-server; python train.py > jupyter-lab.log",
        "which code-server sshd vncserver\npython train.py",
        "sleep 30\nsleep 60\ngmx mdrun",
        "matlab -batch train",
        "vllm serve m --gpu-memory-utilization 0.25",
        "tensorboard --logdir . &\npython train.py",
        "spark-submit x.py",
        "Rscript train.R",
    ],
)
def test_program_is_named(script: str) -> None:
    assert launcher_of(f"#!/bin/bash\n#SBATCH --job-name='jupyter lab'\n{script}\n".encode()) == ""


def test_each_launcher_has_a_source_and_is_found() -> None:
    for launcher in LAUNCHERS:
        assert launcher.source
        for command in launcher.commands.split(", "):
            written = command.replace("[0-9]", "1").replace("[hd]", "h").replace("*", "1")
            assert launcher_of(written.encode()) == launcher.name


def test_long_lines_take_no_time() -> None:
    began = time.process_time()
    kept = b'jupyter\nX="' + b"word " * 8000
    for text in (b"srun " + b"jupyter " * 20_000, b"srun a; sleep\n" * 2000, b'echo "' * 5000 + b" sshd", kept):
        launcher_of(text)
    assert time.process_time() - began < 2
