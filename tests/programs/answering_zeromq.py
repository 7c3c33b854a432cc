"""The culprit sorts in the process of an engine that gets its requests over ZeroMQ."""

import multiprocessing
import pickle

import zmq


def rank(scores):
    return sorted(range(len(scores)), key=lambda at: -scores[at])[:3]


def normalize(scores):
    most = max(scores)
    return [score / most for score in scores]


def engine(address):
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
    socket.connect(address)
    while scores := pickle.loads(socket.recv()):
        socket.send(pickle.dumps(rank(normalize(scores))))


def main():
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REQ)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    worker = multiprocessing.Process(target=engine, args=(f"tcp://127.0.0.1:{port}",))
    worker.start()
    for number in range(1, 13):
        socket.send(pickle.dumps([at * 7_919 % 99_991 / number for at in range(100_000)]))
        print(pickle.loads(socket.recv()))
    socket.send(pickle.dumps([]))
    worker.join()


if __name__ == "__main__":
    main()
