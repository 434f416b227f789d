package driver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// slot keeps a process running: one that ends is followed by another one.
type slot struct {
	d      *driver
	role   string
	name   string
	orders func() shop.Orders

	// fault is held by what is done to the process.
	fault sync.Mutex

	mu      sync.Mutex
	starts  int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	read    chan struct{} // closed when the output of the present process ends
	ended   chan struct{} // closed when it has ended
	ready   chan struct{}
	kills   int  // processes that have ended by SIGKILL
	clock   bool // the next process has a clock that jumps
	closing bool
	done    chan struct{} // closed when there are no more processes
}

func (d *driver) newSlot(role string, i int, orders func() shop.Orders) *slot {
	s := &slot{d: d, role: role, name: fmt.Sprintf("%s-%d", role, i), orders: orders, done: make(chan struct{})}
	go s.keep()
	return s
}

// keep starts one process after another until the slot is closed.
func (s *slot) keep() {
	defer close(s.done)
	for {
		began := time.Now()
		err := s.start()
		if err == nil && s.cmd != nil {
			<-s.read
			err = s.cmd.Wait()
		}
		s.mu.Lock()
		closing := s.closing
		if s.cmd != nil && s.cmd.ProcessState != nil {
			status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
			if ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
				s.kills++
			}
		}
		if s.ended != nil {
			close(s.ended)
			s.ended = nil
		}
		s.mu.Unlock()
		if closing {
			return
		}
		s.d.ended(s.role, err)
		if time.Since(began) < time.Second {
			time.Sleep(500 * time.Millisecond)
		}
	}
}

func (s *slot) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil
	}
	s.starts++
	o := s.orders()
	o.Role, o.Name, o.Seed = s.role, fmt.Sprintf("%s#%d", s.name, s.starts), o.Seed+uint64(s.starts)
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.d.dir, s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), shop.Variable+"="+string(text), "GOMAXPROCS=2")
	if s.clock {
		cmd.Env = append(cmd.Env, shop.ClockVariable+"=1")
		s.clock = false
	}
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	read, ready := make(chan struct{}), make(chan struct{})
	s.cmd, s.stdin, s.read, s.ended, s.ready = cmd, stdin, read, make(chan struct{}), ready
	go func() {
		defer close(read)
		in, said := bufio.NewScanner(stdout), false
		for in.Scan() {
			if in.Text() == shop.Ready && !said {
				said = true
				close(ready)
			}
		}
	}()
	return nil
}

// now returns the present process, and nil if there is none at the moment.
func (s *slot) now() (p *os.Process, ready, ended chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		return nil, nil, nil
	}
	return s.cmd.Process, s.ready, s.ended
}

// awaitReady waits until there is a process that has begun.
func (s *slot) awaitReady() {
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		_, ready, _ := s.now()
		select {
		case <-ready:
			return
		default:
		}
	}
}

// errNone: the process has ended, and the next one has not begun.
var errNone = errors.New("no process")

func (s *slot) signal(sig syscall.Signal) error {
	p, _, _ := s.now()
	if p == nil {
		return fmt.Errorf("signal %s: %w", s.name, errNone)
	}
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", s.name, err)
	}
	return nil
}

// end ends the present process with a signal and waits for its end. If it does not end, it is killed.
func (s *slot) end(sig syscall.Signal, patience time.Duration) error {
	_, _, ended := s.now()
	if err := s.signal(sig); errors.Is(err, errNone) {
		return nil
	} else if err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-time.After(patience):
		s.d.slow.Add(1)
		return s.signal(syscall.SIGKILL)
	}
}

// killed returns how many processes have ended by SIGKILL.
func (s *slot) killed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kills
}

func (s *slot) tell(word string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		return fmt.Errorf("tell %s: %w", s.name, errNone)
	}
	_, err := fmt.Fprintln(s.stdin, word)
	return err
}

// close ends the process for good.
func (s *slot) close() error {
	s.fault.Lock() // for good
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	err := s.end(syscall.SIGTERM, 20*time.Second)
	<-s.done
	return err
}

// lastWords returns the end of the log of a slot.
func (s *slot) lastWords() string {
	text, err := os.ReadFile(filepath.Join(s.d.dir, s.name+".log"))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
