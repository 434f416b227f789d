//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const exeSuffix = ""

type stopSignal = syscall.Signal

// The ways to end a postmaster, with pg_ctl's names.
const (
	signalFast      = syscall.SIGINT
	signalImmediate = syscall.SIGQUIT
	signalKill      = syscall.SIGKILL
)

// account is the user that PostgreSQL runs as: the user of this process, or another one if that is root, because
// PostgreSQL refuses to run as root.
type account struct {
	drop     bool // switch to uid and gid
	uid, gid int
}

// serverAccount returns the user of this process; for root it returns the user postgres, else the user nobody.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &account{drop: true, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New(
		"PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody to run it as")
}

// give makes the account the owner of path.
func (a *account) give(path string) error {
	if !a.drop {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// command prepares a program to run as the account in dir. It runs in its own session, so that a ^C in the terminal
// does not reach it. It inherits no PG* variable, because those would redirect it.
func (a *account) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.drop {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	return cmd
}

// parentDir returns dir. If dir is empty, it returns a folder for temporary files that the account can access.
func parentDir(dir string, a *account) (string, error) {
	if dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		if a.drop && !traversable(dir) {
			return "", fmt.Errorf("folder %s is not accessible to the user that PostgreSQL runs as", dir)
		}
		return dir, nil
	}
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if filepath.IsAbs(dir) && (!a.drop || traversable(dir)) {
			return dir, nil
		}
	}
	return "", errors.New("no folder for temporary files is accessible to the user that PostgreSQL runs as: set TMPDIR")
}

// traversable reports whether every user may pass through dir and all folders above it.
func traversable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return true
		}
		dir = up
	}
}
