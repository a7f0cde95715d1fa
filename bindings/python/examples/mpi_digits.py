# SPDX-License-Identifier: MIT
"""Trains on several ranks over MPI: all ranks step or none, and the result is bit-exact.

    mpirun -np 4 python -m mpi4py mpi_digits.py FILE

FILE and network are as in digits.py. A batch has four parts, which 1, 2 or 4 ranks share. The gradients are added in
the order of the parts, so any number of ranks prints the same digest of the weights. All calls that concern the scaler
and the ranks are in `step`. Needs mpi4py.
"""

import hashlib
import sys

import digits
import numpy as np
from mpi4py import MPI

from gradscaler import Report, Scaler

PARTS, SIZE = 4, len(bytes(Report()))
NAMES = [f"layer{i // 2 + 1}.{'bias' if i % 2 else 'weight'}" for i in range(6)]


def step(comm, scaler, adam, images, labels, batch):
    reports, gradients = b"", []
    for part in batch.reshape(PARTS, -1)[comm.rank * PARTS // comm.size : (comm.rank + 1) * PARTS // comm.size]:
        parameters = [p.astype(np.float16) for p in adam.master]
        activations = digits.forward(parameters, images[part].astype(np.float16))
        delta = digits.loss_gradient(activations[-1], labels[part]) / PARTS
        scaled = digits.backward(parameters, activations, scaler.scale(delta, dtype=np.float16))
        try:
            report = scaler.unscale(scaled, dtype=np.float32)
        except Exception as error:  # a failed rank still sends a report: the others wait for it
            print(f"rank {comm.rank}: {error}", file=sys.stderr)
            report = Report.failed(error)
        reports += bytes(scaler.set_rank(report, comm.rank))
        gradients.append(report.grads)

    of_all = bytearray(PARTS * SIZE)
    request = comm.Iallgather(reports, of_all)  # reports and gradients are sent at the same time
    parts = [part for of_rank in comm.allgather(gradients) for part in of_rank]
    request.Wait()
    of_all = [Report.from_bytes(of_all[i : i + SIZE]) for i in range(0, len(of_all), SIZE)]
    report = Report.merge(of_all, addends=True, names=NAMES)  # raises on all ranks if a rank has another state

    scaler.update(report)  # raises on all ranks if a rank failed, and names it
    if not scaler.skip:
        adam.step([sum(gradients[1:], gradients[0]) for gradients in zip(*parts, strict=True)])
    elif comm.rank == 0:
        print("skipped:", report, file=sys.stderr)


def main():
    data = np.fromfile(sys.argv[1], np.uint8).reshape(digits.DIGITS, -1)
    images, labels = (data[:, :-1] / 16).astype(np.float32), data[:, -1]
    scaler = Scaler("torch", init_scale=2.0**40, growth_interval=25)  # starts too high on purpose, and grows often
    rng = np.random.default_rng(digits.SEED)
    adam = digits.Adam(digits.initial_parameters(rng))
    for _ in range(digits.EPOCHS):
        for batch in rng.permutation(digits.TRAINING_SET).reshape(-1, digits.BATCH):
            step(MPI.COMM_WORLD, scaler, adam, images, labels, batch)

    digest = hashlib.sha256(b"".join(p.tobytes() for p in adam.master)).hexdigest()[:16]
    if set(MPI.COMM_WORLD.allgather(digest)) != {digest}:
        sys.exit("the ranks have different weights")
    logits = digits.forward(adam.master, images[digits.TRAINING_SET :])[-1]
    accuracy = np.mean(logits.argmax(axis=1) == labels[digits.TRAINING_SET :])
    if MPI.COMM_WORLD.rank == 0:
        print(
            f"accuracy {accuracy:.1%}, skipped {scaler.total_overflows}, scale {scaler.loss_scale:.0f}, digest {digest}"
        )
    if accuracy < 0.9:
        sys.exit("that is not what one process learns")


if __name__ == "__main__":
    main()
