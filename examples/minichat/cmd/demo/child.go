package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The words that parent and child send each other, one per line. The parent writes to the child's standard input; its
// end tells the child to stop. The child writes to its standard output.
const (
	workCommand = "work"
	sayHold     = "hold"
	saysReady   = "ready"
	saysHolding = "holding"
)

const stopTimeout = 20 * time.Second

// child is a worker process in its parent.
type child struct {
	name    string
	worker  uuid.UUID // marks its claims
	cmd     *exec.Cmd
	control io.WriteCloser
	log     string
	said    chan string   // words from the child
	ended   chan struct{} // closed when the process has ended
	ending  chan struct{} // closed when the process is told to end
	err     error         // of the process; set before ended is closed
}

// startChild runs this program again as a worker on the database at url and Kafka at brokers. It keeps its records in dir.
// If the process ends without being stopped or killed, startChild calls abort.
func startChild(name, dir, url, brokers string, abort context.CancelCauseFunc) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start worker %s: %w", name, err)
	}
	c := &child{
		name: name, worker: uuid.New(),
		cmd:   exec.Command(program, workCommand, filepath.Join(dir, "delivery-"+name+journalSuffix), filepath.Join(dir, "shown-"+name+journalSuffix)),
		log:   filepath.Join(dir, name+".log"),
		said:  make(chan string, 8),
		ended: make(chan struct{}), ending: make(chan struct{}),
	}
	c.cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "KAFKA_BROKERS="+brokers, workerVariable+"="+c.worker.String())
	if err := c.launch(abort); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", name, err)
	}
	return c, nil
}

func (c *child) launch(abort context.CancelCauseFunc) error {
	log, err := os.Create(c.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	c.cmd.Stderr = log
	if c.control, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	words, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	go func() {
		lines := bufio.NewScanner(words)
		for lines.Scan() {
			c.said <- lines.Text()
		}
		c.err = c.cmd.Wait()
		close(c.ended)
		select {
		case <-c.ending:
		default:
			abort(c.failure(c.err))
		}
	}()
	return nil
}

// await waits until the child says word.
func (c *child) await(ctx context.Context, word string) error {
	select {
	case said := <-c.said:
		if said != word {
			return c.failure(fmt.Errorf("said %q, not %q", said, word))
		}
		return nil
	case <-c.ended:
		return c.failure(c.err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hold tells the child to block its handlers.
func (c *child) hold() error {
	if _, err := fmt.Fprintln(c.control, sayHold); err != nil {
		return c.failure(err)
	}
	return nil
}

// kill ends the process with SIGKILL and waits for its end.
func (c *child) kill() error {
	c.expectEnd()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return c.failure(err)
	}
	<-c.ended
	return nil
}

// stop stops the worker gracefully.
func (c *child) stop() error {
	c.expectEnd()
	_ = c.control.Close() // fails if the process has ended, which is checked below
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-c.ended:
	case <-timeout.C:
		return errors.Join(c.failure(errors.New("does not stop")), c.kill())
	}
	if c.err != nil {
		return c.failure(c.err)
	}
	return nil
}

func (c *child) expectEnd() {
	select {
	case <-c.ending:
	default:
		close(c.ending)
	}
}

// failure adds the end of the log to err.
func (c *child) failure(err error) error {
	if err == nil {
		err = errors.New("ended too early")
	}
	text, _ := os.ReadFile(c.log) // if it cannot be read, err alone must do
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("worker %s: %w; its log ends: %s", c.name, err, lines[len(lines)-1])
}
