# SPDX-License-Identifier: MIT
"""A rank of MPI, by mpi4py; started by mpirun.

with_mpi.py faults DIRECTORY FAULT SECONDS
with_mpi.py reports FILE DIRECTORY
"""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI
from steps import BAD_RANK, BAD_STEP, GROWTH_INTERVAL, INIT_SCALE, REPORT_SIZE, STEPS, Log, cases, gradients

from gradscaler import Report, Scaler, Want

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def gathered(report):
    every = bytearray(size * REPORT_SIZE)
    comm.Allgather(bytes(report), every)
    return [Report.from_bytes(every[at : at + REPORT_SIZE]) for at in range(0, len(every), REPORT_SIZE)]


def faults(directory, fault, seconds):
    scale = INIT_SCALE / 2 if fault == "drift" and rank == BAD_RANK else INIT_SCALE
    scaler = Scaler("torch", init_scale=scale, growth_interval=GROWTH_INTERVAL)
    log = Log(directory, rank)
    for step in range(STEPS):
        values = (np.float32(values) * np.float32(scaler.loss_scale) for values in gradients(step, rank))
        grads = dict(zip(("weight", "bias"), values, strict=True))
        if step == BAD_STEP and rank == BAD_RANK:
            if fault == "nan":
                grads["weight"][2] = np.nan
            elif fault == "fails":
                grads["weight"] = np.zeros(8, np.int32)
            elif fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "late":
                time.sleep(float(seconds))
        failure = None
        try:
            report = scaler.unscale(grads, want=Want.NORM)
        except Exception as error:
            failure, report = error, Report.failed(error)
        try:
            merged = Report.merge(gathered(scaler.set_rank(report, rank)), policy=scaler.policy, names=list(grads))
            scaler.update(merged)
        except Exception as error:
            log.refused(step, failure or error)
        log.stepped(step, not merged.overflow, merged.norm, scaler.loss_scale, merged)


def reports(path, directory):
    with open(f"{directory}/{size}-{rank}", "wb") as out:
        for case in cases(path, size):
            out.write(bytes(Report.merge(gathered(case[rank]))))


{"faults": faults, "reports": reports}[sys.argv[1]](*sys.argv[2:])
