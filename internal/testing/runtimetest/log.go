package runtimetest

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// LogSpy is a log that tests read and wait for.
type LogSpy struct {
	mu    sync.Mutex
	text  strings.Builder
	lines chan string
}

func NewLogSpy() *LogSpy { return &LogSpy{lines: make(chan string, 10_000)} }

func (s *LogSpy) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (s *LogSpy) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(line)
	select {
	case s.lines <- string(line):
	default:
	}
	return len(line), nil
}

func (s *LogSpy) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Await returns the next line that holds part.
func (s *LogSpy) Await(t testing.TB, part string) string {
	t.Helper()
	for {
		if line := pgtest.Receive(t, s.lines, fmt.Sprintf("the log line %q", part)); strings.Contains(line, part) {
			return line
		}
	}
}

// Lines returns what a log at INFO would have.
func (s *LogSpy) Lines() (lines []string) {
	for line := range strings.Lines(s.String()) {
		if !strings.Contains(line, "level=DEBUG") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}
