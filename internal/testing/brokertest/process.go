// Package brokertest runs private RabbitMQ and Redis servers from the programs of this machine, for tests. A server
// listens on loopback, has its own folder, and ends with the process that started it.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Supervisor is the name of the function that waits for a server until it ends. A leak check must ignore it:
// goleak.IgnoreAnyFunction(brokertest.Supervisor).
const Supervisor = "github.com/outboxgen/outboxgen/internal/testing/brokertest.(*process).supervise"

const (
	startTimeout = 3 * time.Minute
	stopTimeout  = 30 * time.Second
	probeEvery   = 20 * time.Millisecond
)

// RequireVariable is the environment variable that makes tests fail without a server instead of being skipped.
const RequireVariable = "OUTBOXGEN_TEST_BROKERS"

// errMissing is returned if this machine does not have the server.
var errMissing = errors.New("is not installed: `make test-brokers` installs it")

// skip ends a test whose server is not installed.
func skip(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(RequireVariable) != "" {
		t.Fatalf("%s %v", what, errMissing)
	}
	t.Skipf("%s %v", what, errMissing)
}

// process is a running program and the goroutine that waits for it.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// start runs cmd and appends its output to the file log. The goroutine that forks keeps its thread until the program
// has ended, because the kernel sends a parent-death signal when the forking thread ends, not when the process ends.
func start(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	dieWithParent(cmd)
	started := make(chan error)
	go p.supervise(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) supervise(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // how it ended is in its log
	}
}

// kill ends the process and its children with SIGKILL and waits for its end.
func (p *process) kill() error {
	if p == nil {
		return nil
	}
	select {
	case <-p.done: // its id may be another process's now
		return nil
	default:
		killAll(p.cmd)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("process %d does not end", p.cmd.Process.Pid)
	}
}

// await waits until somebody listens at addr.
func (p *process) await(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("server ended: %s", p.tail())
		case <-ctx.Done():
			return fmt.Errorf("server does not answer: %w: %s", err, p.tail())
		case <-time.After(probeEvery):
		}
	}
}

// tail returns the end of the log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}

// without returns the environment of this process without the variables that begin with one of prefixes, which would
// redirect a server, and with more.
func without(prefixes []string, more ...string) []string {
	var env []string
next:
	for _, entry := range os.Environ() {
		for _, prefix := range prefixes {
			if strings.HasPrefix(entry, prefix) {
				continue next
			}
		}
		env = append(env, entry)
	}
	return append(env, more...)
}
