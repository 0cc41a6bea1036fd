"""Plays attacks against a target: many at a time, each to its end."""

import select
import socket
import struct
import time
from collections import namedtuple

from peer.iwarp import Closed, Refused
from peer.wire import NotGranted

AT_A_TIME = 100
ENDED_WITHIN_S = 20

# `start(address)` opens the connection, misbehaves and returns the socket. With `fatal` the target must end the connection
# by itself; otherwise it may as well answer or wait, and this side ends it.
Attack = namedtuple("Attack", "name start fatal")


def play(attacks, target):
    attacks = list(attacks)
    assert attacks, "a family without attacks"
    for begin in range(0, len(attacks), AT_A_TIME):
        wave = [(attack, begin_one(attack, target)) for attack in attacks[begin : begin + AT_A_TIME]]
        deadline = time.monotonic() + ENDED_WITHIN_S
        for index, (attack, connection) in enumerate(wave):
            if connection is None:
                continue
            if attack.fatal and not ended(connection, deadline):
                raise AssertionError(f"{attack.name}: the target did not end the connection")
            # Every second one ends in a reset rather than in peace.
            if index % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        target.check_alive()


def begin_one(attack, target):
    """The socket of a started attack, or None if it is over already.

    Over is also what an adapter would end: the target uses a key that this side made up.
    """
    try:
        return attack.start(target)
    except (Closed, Refused, NotGranted, BrokenPipeError, ConnectionResetError):
        return None
    except Exception as problem:
        raise AssertionError(f"{attack.name}: {problem!r}") from problem


def ended(connection, deadline):
    """Reads until the peer ends the connection; False if it has not done so by the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([connection], [], [], left)[0]:
            return False
        try:
            if not connection.recv(1 << 16):
                return True
        except ConnectionResetError:
            return True
    return False


def dial(target):
    connection = socket.create_connection(target.address, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def say(data):
    """An attack that sends these bytes on a fresh TCP connection."""

    def start(target):
        connection = dial(target)
        connection.sendall(data)
        return connection

    return start
