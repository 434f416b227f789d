package pgserver

import (
	"os"
	"os/exec"
	"runtime"
	"time"
)

// process is a postmaster and the goroutine that waits for it.
type process struct {
	cmd  *exec.Cmd
	log  string
	from int64 // size of the log before the start
	done chan struct{}
	// server is kept reachable by the goroutine while it runs: were it collected, its pipe to the guard would
	// be closed, and the guard would take that for the end of this process.
	server *Server
}

// startProcess runs a program as the owner of s, its output appended to the log. The goroutine that forks keeps
// its thread until the program has ended: the kernel delivers a parent-death signal when the forking
// thread ends, not when the process does.
func startProcess(s *Server, name string, args ...string) (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}

	p := &process{
		cmd:    s.owner.command(s.dir, name, args...),
		log:    s.logFile(),
		from:   info.Size(),
		done:   make(chan struct{}),
		server: s,
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	dieWithParent(p.cmd)
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
		runtime.KeepAlive(p.server)
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop sends sig and waits up to timeout for the end, which it reports.
func (p *process) stop(sig stopSignal, timeout time.Duration) bool {
	_ = p.cmd.Process.Signal(sig) // the only error is that it has ended
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

// output returns what this run has logged.
func (p *process) output() string {
	text, err := os.ReadFile(p.log)
	if err != nil || int64(len(text)) < p.from {
		return ""
	}
	return string(text[p.from:])
}
