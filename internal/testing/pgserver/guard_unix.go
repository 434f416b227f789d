//go:build unix

package pgserver

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// dirPrefix starts the name of every server's folder.
	dirPrefix = "outboxgen-pg-"
	lockName  = "lock"
	// fresh is how long a new folder is not swept, because its process may not have locked it yet.
	fresh = time.Minute
)

// guardScript waits until its input ends. The kernel closes the input when this process ends, for whatever reason. Then
// the script shuts the server down and removes the folder $0.
const guardScript = `read -r line
pid=$(head -n 1 data/postmaster.pid 2>/dev/null)
if [ -n "$pid" ]; then
	kill -QUIT "$pid" 2>/dev/null
	n=0
	while kill -0 "$pid" 2>/dev/null && [ "$n" -lt 100 ]; do n=$((n + 1)); sleep 0.1; done
fi
cd / && rm -rf "$0"`

// guard is a shell process that cleans up after a process that ended without doing so.
type guard struct {
	cmd   *exec.Cmd
	input io.Closer
}

func startGuard(dir string, owner *account) (*guard, error) {
	cmd := owner.command(dir, "/bin/sh", "-c", guardScript, dir)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &guard{cmd: cmd, input: input}, nil
}

// release ends the guard. Call it after the folder was removed.
func (g *guard) release() {
	_ = g.cmd.Process.Kill()
	_ = g.input.Close()
	_ = g.cmd.Wait() // killed
}

// lockDir marks dir as in use while this process lives and the file is open.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweep removes the folders in parent whose process and guard were both killed. It ignores errors.
func sweep(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*")) // the only error is a bad pattern
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < fresh || !abandoned(dir) {
			continue
		}
		_ = os.RemoveAll(dir)
	}
}

// abandoned reports whether no process holds the lock of dir and its postmaster is gone.
func abandoned(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	return !running(filepath.Join(dir, "data", "postmaster.pid"))
}

// running reports whether the process whose id is the first line of pidfile is alive.
func running(pidfile string) bool {
	text, err := os.ReadFile(pidfile)
	if err != nil {
		return false
	}
	for i, c := range text {
		if c == '\n' {
			text = text[:i]
			break
		}
	}
	pid, err := strconv.Atoi(string(text))
	return err == nil && pid > 0 && syscall.Kill(pid, 0) != syscall.ESRCH
}
