package regfile

import "golang.org/x/sys/unix"

// dirFlags opens a directory for walking through it, which takes no right to list it.
const dirFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func times(st *unix.Stat_t) (mtime, ctime int64) { return st.Mtim.Nano(), st.Ctim.Nano() }
