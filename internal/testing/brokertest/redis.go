package brokertest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
)

// Redis is a private Redis server that writes every command to its log before it answers.
type Redis struct {
	bin, dir string
	args     []string
	port     int
	mu       sync.Mutex
	server   *process
}

// StartRedis starts a server with further arguments, such as --maxmemory 2mb. It ends with the test. The test is
// skipped if Redis is not installed.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	r, err := RunRedis(args...)
	if errors.Is(err, errMissing) {
		skip(t, "Redis")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Errorf("stop Redis: %v", err)
		}
	})
	return r
}

// RunRedis starts a server with further arguments. The caller must Stop it.
func RunRedis(args ...string) (*Redis, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("Redis %w", errMissing)
	}
	dir, err := os.MkdirTemp("", "outboxgen-redis-")
	if err != nil {
		return nil, fmt.Errorf("start Redis: %w", err)
	}
	r := &Redis{bin: bin, dir: dir, args: args}
	for range 5 { // another process may take the port first
		if r.port, err = freeport.Find(); err != nil {
			break
		}
		if err = r.run(); err == nil {
			return r, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("start Redis: %w", err), r.Stop())
}

// Stop ends the server and removes its data.
func (r *Redis) Stop() error {
	err := r.Kill()
	for range 10 { // a child that was killed may still end
		if os.RemoveAll(r.dir) == nil {
			break
		}
		time.Sleep(probeEvery)
	}
	return err
}

func (r *Redis) run() error {
	cmd := exec.Command(r.bin, append([]string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0",
	}, r.args...)...)
	cmd.Env, cmd.Dir = without([]string{"REDIS"}), r.dir
	server, err := start(cmd, filepath.Join(r.dir, "server.log"))
	if err != nil {
		return err
	}
	r.server = server
	return server.await(r.Addr())
}

// Addr returns the address of the server, which Restart does not change.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// Port returns the port of the server.
func (r *Redis) Port() int { return r.port }

// Kill ends the server with SIGKILL. Its data stays.
func (r *Redis) Kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server.kill()
}

// Restart starts a killed server again, on the same port and data.
func (r *Redis) Restart() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.server.kill(), r.run())
}

// Signal sends a signal to the server.
func (r *Redis) Signal(s os.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.server.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal Redis: %w", err)
	}
	return nil
}
