"""llama.cpp's HTTP server in a process of its own: prints READY and its address, serves until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # read when libgomp loads: idle threads must not spin

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--template", type=Path, required=True)
    parser.add_argument("--context", type=int, required=True)
    options = parser.parse_args()
    server = xllamacpp.Server(parameters(options.model, options.template, options.context))
    print("READY", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # its threads would otherwise outlive the interpreter's own teardown


def parameters(model: Path, template: Path, context: int) -> xllamacpp.CommonParams:
    """One slot on one thread and a free port; no prompt cache besides that of the slot."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"smol"}
    params.chat_template = template.read_text(encoding="utf-8")
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port = 0
    params.endpoint_slots = True
    params.ui = False
    params.verbosity = 1
    params.cache_ram_mib = 0
    return params


if __name__ == "__main__":
    main()
