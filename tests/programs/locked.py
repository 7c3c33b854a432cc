"""The culprit sleeps while it holds a lock that other threads need."""

import threading
import time

LOCK = threading.Lock()


def update():
    with LOCK:
        time.sleep(0.01)


def work():
    for _ in range(25):
        update()


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
