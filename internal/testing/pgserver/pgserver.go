// Package pgserver runs private PostgreSQL servers from the binaries of this machine, for tests, the demo and the mains
// of the examples. A server has its own folder and listens on loopback with a random password. It ends with the process
// that started it, however that process ends.
package pgserver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
)

const (
	superuser = "postgres"
	// maxSocketPath is the longest folder for which the socket fits into the smallest sun_path (104 bytes, on macOS).
	maxSocketPath = 104 - len("/.s.PGSQL.65535") - 1
	startTimeout  = 60 * time.Second
	stopTimeout   = 20 * time.Second
	probeEvery    = 20 * time.Millisecond
	// logTail is how many lines of the log say why a server has ended. After a SIGKILL each of its old backends adds one.
	logTail = 250
)

// Options configure a server. The zero value is a server for tests.
type Options struct {
	// Durable keeps PostgreSQL's defaults of fsync, full_page_writes and jit. Without it a crash of the machine may
	// corrupt the data, and no plan is compiled, which matters to a demo or a benchmark, but not to a test. Tests that
	// forbid a kind of plan make costs that PostgreSQL would spend seconds of compiling on.
	Durable bool
	// Dir is the folder in which the server creates its own folder. Empty means the folder for temporary files, or, unless
	// the server is Durable or TMPDIR is set, a folder in memory if this system has one with enough space.
	Dir string
	// Bin is the folder of initdb and postgres. Empty means the result of Find.
	Bin string
	// MaxConnections is max_connections. Zero means 200.
	MaxConnections int
	// Settings are further lines of postgresql.conf. They override the settings of this package.
	Settings map[string]string
}

// Server is a running PostgreSQL. Any goroutine may call its methods, one at a time.
type Server struct {
	bin      string
	dir      string // contains data/, server.log, the socket and the lock
	port     int
	password string
	owner    *account
	guard    *guard
	lock     *os.File

	mu      sync.Mutex
	process *process // nil while stopped
	removed bool
}

// Start creates a new cluster and runs a server on it. The caller must Stop it. If the process dies first, the server
// is still shut down and its folder removed.
func Start(opts Options) (*Server, error) {
	bin := opts.Bin
	if bin == "" {
		found, err := Find()
		if err != nil {
			return nil, err
		}
		bin = found
	}
	owner, err := serverAccount()
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	if opts.Dir == "" && !opts.Durable {
		opts.Dir = memoryParent()
	}
	parent, err := parentDir(opts.Dir, owner)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	sweep(parent)

	s := &Server{bin: bin, owner: owner, password: randomHex(16)}
	if err := s.create(parent, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), s.remove())
	}
	if err := s.launch(); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), s.remove())
	}
	return s, nil
}

// URL returns the connection URL of the maintenance database, over TCP, with its password.
func (s *Server) URL() string { return s.URLOf("postgres") }

// URLOf returns the connection URL of a database of the server.
func (s *Server) URLOf(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port returns the TCP port on 127.0.0.1. Restart does not change it.
func (s *Server) Port() int { return s.port }

// Dir returns the folder of the server, which Stop removes.
func (s *Server) Dir() string { return s.dir }

// Log returns what the server has written to its log.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return ""
	}
	return string(text)
}

// Pid returns the process id of the postmaster, or 0 while the server is down.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid()
}

// Stop disconnects the clients, shuts the server down and removes its folder. A second Stop does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return nil
	}
	return errors.Join(s.halt(signalFast), s.remove())
}

// Kill ends the postmaster with SIGKILL, like a crash. Its backends notice that and end soon. The data stays for
// Restart.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(signalKill)
}

// Restart starts the server again on the same port and data. If it is still running, Restart first shuts it down in
// pg_ctl's immediate mode: without a checkpoint, so that the start goes through recovery.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return errors.New("restart PostgreSQL: server was stopped")
	}
	if err := s.halt(signalImmediate); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	if err := s.run(); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

// create creates the folder, the guard that removes it, and the cluster.
func (s *Server) create(parent string, opts Options) error {
	dir, err := os.MkdirTemp(parent, dirPrefix)
	if err != nil {
		return err
	}
	s.dir = dir
	if s.lock, err = lockDir(dir); err != nil {
		return err
	}
	if err := s.owner.give(dir); err != nil {
		return err
	}
	// Other users must be able to reach the socket. The data folder has its own mode.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if s.guard, err = startGuard(dir, s.owner); err != nil {
		return err
	}
	if err := s.initdb(); err != nil {
		return err
	}
	conf := filepath.Join(s.dataDir(), "postgresql.conf")
	f, err := os.OpenFile(conf, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.settings(opts))
	return errors.Join(err, f.Close())
}

func (s *Server) initdb() error {
	pwfile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pwfile, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	if err := s.owner.give(pwfile); err != nil {
		return err
	}
	cmd := s.owner.command(s.dir, filepath.Join(s.bin, "initdb"+exeSuffix),
		"--pgdata="+s.dataDir(), "--username="+superuser, "--pwfile="+pwfile, "--auth=password",
		"--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, tail(string(out), 5))
	}
	return os.Remove(pwfile)
}

// settings returns the lines to add to postgresql.conf.
func (s *Server) settings(opts Options) string {
	all := map[string]string{
		"listen_addresses":          "127.0.0.1",
		"max_connections":           "200",
		"max_prepared_transactions": "20",
		"unix_socket_directories":   "",
		"lc_messages":               "C",
		"timezone":                  "UTC",
		"log_timezone":              "UTC",
		"log_line_prefix":           "%m [%p] %d %a ",
		"logging_collector":         "off",
	}
	if len(s.dir) <= maxSocketPath {
		all["unix_socket_directories"] = s.dir
	}
	if opts.MaxConnections > 0 {
		all["max_connections"] = strconv.Itoa(opts.MaxConnections)
	}
	if !opts.Durable {
		all["fsync"] = "off"
		all["full_page_writes"] = "off"
		all["jit"] = "off"
	}
	for name, value := range opts.Settings {
		all[name] = value
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	return b.String()
}

// launch picks a free port and runs the server on it. Another process may take the port before the server does; then
// launch tries another one.
func (s *Server) launch() error {
	var err error
	for range 5 {
		if s.port, err = freeport.Find(); err != nil {
			return err
		}
		if err = s.run(); err == nil || !strings.Contains(err.Error(), "could not bind") {
			return err
		}
	}
	return err
}

// run starts the postmaster and waits until it answers. After a SIGKILL the orphaned backends keep the shared memory
// for a moment. A start is refused meanwhile, and run tries again.
func (s *Server) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := s.attempt(ctx)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "shared memory block") {
			return err
		}
		backoff.Sleep(ctx, probeEvery)
	}
}

func (s *Server) attempt(ctx context.Context) error {
	p, err := startProcess(s, filepath.Join(s.bin, "postgres"+exeSuffix),
		"-D", s.dataDir(), "-p", strconv.Itoa(s.port))
	if err != nil {
		return err
	}
	for {
		err := s.ping(ctx)
		if err == nil {
			s.process = p
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("server ended: %s", tail(p.output(), logTail))
		case <-ctx.Done():
			p.stop(signalKill, stopTimeout)
			return fmt.Errorf("server does not answer: %w", err)
		default:
			backoff.Sleep(ctx, probeEvery)
		}
	}
}

// ping opens and closes a connection.
func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// halt ends the postmaster, if there is one.
func (s *Server) halt(sig stopSignal) error {
	if s.process == nil {
		return nil
	}
	p := s.process
	s.process = nil
	if !p.stop(sig, stopTimeout) && !p.stop(signalKill, stopTimeout) {
		return fmt.Errorf("stop PostgreSQL: process %d does not end", p.pid())
	}
	return nil
}

// remove deletes the folder and ends the guard.
func (s *Server) remove() error {
	s.removed = true
	var err error
	if s.dir != "" {
		err = os.RemoveAll(s.dir)
	}
	if s.guard != nil {
		s.guard.release()
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)
}

// tail returns the last n lines of text that are not empty, joined to one line.
func tail(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "; ")
}
