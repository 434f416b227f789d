package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// How often the counts are shown: redrawn in place on a terminal, else one line each.
const (
	redrawEvery = 150 * time.Millisecond
	lineEvery   = time.Second
)

// Control sequences of terminals.
const (
	eraseLine = "\r\x1b[K"
	noWrap    = "\x1b[?7l" // cuts a line that is too long, so that it can be redrawn
	wrap      = "\x1b[?7h"
)

// progress prints what is happening. Any goroutine may call its methods.
type progress struct {
	out      io.Writer
	terminal bool
	began    time.Time
	quit     chan struct{}
	once     sync.Once
	running  sync.WaitGroup

	mu    sync.Mutex
	drawn bool // the cursor is in a line of counts
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, terminal: isTerminal(out), began: time.Now(), quit: make(chan struct{})}
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// say prints a separate line.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(fmt.Sprintf(format, args...), false)
}

// follow repeatedly shows what counts returns, until ctx ends or stop is called. It skips an empty text.
func (p *progress) follow(ctx context.Context, counts func(context.Context) string) {
	every := lineEvery
	if p.terminal {
		every = redrawEvery
	}
	p.running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.quit:
				return
			case <-tick.C:
			}
			if text := counts(ctx); text != "" {
				p.mu.Lock()
				p.print(text, p.terminal)
				p.mu.Unlock()
			}
		}
	})
}

// stop ends the counts and leaves the cursor on a new line. A second stop does nothing.
func (p *progress) stop() {
	p.once.Do(func() {
		close(p.quit)
		p.running.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.drawn {
			_, _ = fmt.Fprintln(p.out)
		}
	})
}

// print writes a line with the time, over a line of counts if there is one. redraw leaves the line open for the next one.
// print ignores errors: progress that cannot be shown does not end the demo.
func (p *progress) print(text string, redraw bool) {
	line := fmt.Sprintf("%5.1fs  %s", time.Since(p.began).Seconds(), text)
	if redraw {
		line = noWrap + line + wrap
	} else {
		line += "\n"
	}
	if p.drawn {
		line = eraseLine + line
	}
	p.drawn = redraw
	_, _ = io.WriteString(p.out, line)
}
