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
	// server keeps the Server reachable while the goroutine runs. If it were collected, its pipe to the guard would be
	// closed, and the guard would take that for the end of this process.
	server *Server
}

// startProcess runs a program as the owner of s and appends its output to the log. The goroutine that forks keeps its
// thread until the program has ended, because the kernel sends a parent-death signal when the forking thread ends, not
// when the process ends.
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

// stop sends sig, waits up to timeout for the end of the process, and reports whether it has ended.
func (p *process) stop(sig stopSignal, timeout time.Duration) bool {
	_ = p.cmd.Process.Signal(sig) // fails only if the process has ended
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

// output returns what this process has logged.
func (p *process) output() string {
	text, err := os.ReadFile(p.log)
	if err != nil || int64(len(text)) < p.from {
		return ""
	}
	return string(text[p.from:])
}
