package pgserver

import (
	"errors"
	"os"
	"os/exec"
)

// On Windows nothing would end a server when the process that started it ends, so no server is started there.

const (
	exeSuffix = ".exe"
	dirPrefix = "outboxgen-pg-"
)

type stopSignal = os.Signal

var signalFast, signalImmediate, signalKill = os.Kill, os.Kill, os.Kill

type account struct{}

func serverAccount() (*account, error) {
	return nil, errors.New("private servers need a Unix system: use a running server by its URL")
}

func (*account) give(string) error { return nil }

func (*account) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return cmd
}

func parentDir(dir string, _ *account) (string, error) { return dir, nil }

type guard struct{}

func startGuard(string, *account) (*guard, error) { return &guard{}, nil }
func (*guard) release()                           {}
func lockDir(string) (*os.File, error)            { return nil, errors.ErrUnsupported }
func sweep(string)                                {}
