"""A seccomp filter without a library: a deny list of system calls that no environment needs.

Denied calls fail with EPERM. `clone3` fails with ENOSYS, so libc falls back to `clone`: a filter can read
the flags of `clone` but not of `clone3`, and refuses those that make namespaces. Processes and threads stay
allowed. Of sockets only the usual families are left; `Sockets` says which of them.
"""

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2

_LOAD, _AND, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL: Final = 0x80000000
_CLONE_NEW: Final = 0x7E020000  # every CLONE_NEW* flag
_X32_BIT: Final = 0x40000000

# name: (x86_64, aarch64)
_DENIED: Final[dict[str, tuple[int, int]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0, 56), "aarch64": (0xC00000B7, 1, 220)}
_CLONE3: Final = 435
_SOCKET: Final = (41, 198)
_PRLIMIT: Final = (302, 261)
_SENDING: Final = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))
"""sendto, sendmsg, sendmmsg, each with the number of the argument that holds its flags."""
_FAST_OPEN: Final = 0x20000000  # MSG_FASTOPEN connects, and Landlock does not see it
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _TYPE_BITS = 1, 2, 0xF
_TCP: Final = 6


@dataclass(frozen=True, slots=True)
class Sockets:
    """What a process may open. inet: any of the internet. udp: also those without a connection. unix: by
    path, which Landlock does not hold back; pairs are always allowed. is_by_port: TCP alone, as it can be
    held to ports, and neither MPTCP nor a connection within a send, which get past them."""

    inet: bool = True
    udp: bool = True
    unix: bool = True
    is_by_port: bool = False


ANY_SOCKET: Final = Sockets()


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_available() -> bool:
    """Whether this machine's architecture is known."""
    return platform.system() == "Linux" and platform.machine() in _ARCHITECTURES


def build_filter(machine: str, sockets: Sockets = ANY_SOCKET) -> bytes:
    """The BPF program for one architecture."""
    audit, column, clone = _ARCHITECTURES[machine]
    denied = sorted(numbers[column] for numbers in _DENIED.values())
    code = [
        _instruction(_LOAD, 4),  # seccomp_data.arch
        _instruction(_JUMP_EQ, audit, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),  # seccomp_data.nr
        _instruction(_JUMP_GE, _X32_BIT, 0, 1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_JUMP_EQ, _CLONE3, 0, 1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
        _instruction(_JUMP_EQ, clone, 0, 4),
        _argument(0),
        _instruction(_JUMP_SET, _CLONE_NEW, 0, 1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    code += _socket_rules(_SOCKET[column], sockets)
    if sockets.is_by_port:
        code += [one for numbers, flags in _SENDING for one in _no_fast_open(numbers[column], flags)]
    code += _only_its_own_limits(_PRLIMIT[column])
    for number in denied:
        code += [_instruction(_JUMP_EQ, number, 0, 1), _instruction(_RETURN, _ERRNO | errno.EPERM)]
    code.append(_instruction(_RETURN, _ALLOW))
    return b"".join(code)


def _socket_rules(number: int, sockets: Sockets) -> list[bytes]:
    """Which sockets may be opened; all of it ends in an answer."""
    allow, deny = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | errno.EPERM)
    rules = [_argument(0)]  # the family
    for family in (_NETLINK, _UNIX) if sockets.unix else (_NETLINK,):
        rules += [_instruction(_JUMP_EQ, family, 0, 1), allow]
    if sockets.inet:
        rules += [_instruction(_JUMP_EQ, _INET, 2), _instruction(_JUMP_EQ, _INET6, 1), deny]
        rules += [_argument(1), _instruction(_AND, _TYPE_BITS)]
        if sockets.udp:
            rules += [_instruction(_JUMP_EQ, _DATAGRAM, 0, 1), allow]
        rules += [_instruction(_JUMP_EQ, _STREAM, 1), deny]
        if sockets.is_by_port:
            rules += [_argument(2), _instruction(_JUMP_EQ, 0, 2), _instruction(_JUMP_EQ, _TCP, 1), deny]
        rules.append(allow)
    rules.append(deny)
    return [_instruction(_JUMP_EQ, number, 0, len(rules)), *rules]


def _no_fast_open(number: int, flags: int) -> list[bytes]:
    rules = [_argument(flags), _instruction(_JUMP_SET, _FAST_OPEN, 0, 1)]
    rules += [_instruction(_RETURN, _ERRNO | errno.EPERM), _instruction(_RETURN, _ALLOW)]
    return [_instruction(_JUMP_EQ, number, 0, len(rules)), *rules]


def _only_its_own_limits(number: int) -> list[bytes]:
    """A limit of processor time, set for another process, would kill it, and Landlock does not see it."""
    allow, deny = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | errno.EPERM)
    rules = [_argument(0), _instruction(_JUMP_EQ, 0, 0, 1), allow, deny]
    return [_instruction(_JUMP_EQ, number, 0, len(rules)), *rules]


def _argument(number: int) -> bytes:
    """Load the low half of an argument of the system call."""
    return _instruction(_LOAD, 16 + 8 * number)


def install(program: bytes, libc: ctypes.CDLL) -> None:
    """Filter this process and its children for good. Raises OSError."""
    prog = _Program(len(program) // 8, program)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot set no_new_privs")
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(prog), 0, 0):
        raise OSError(ctypes.get_errno(), "cannot install the seccomp filter")


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
