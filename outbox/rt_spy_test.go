package outbox_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// spy is a log that tests read and wait for.
type spy struct {
	mu    sync.Mutex
	text  strings.Builder
	lines chan string
}

func newSpy() *spy { return &spy{lines: make(chan string, 10_000)} }

func (s *spy) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (s *spy) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(line)
	select {
	case s.lines <- string(line):
	default:
	}
	return len(line), nil
}

func (s *spy) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await returns the next line that holds part.
func (s *spy) await(t testing.TB, part string) string {
	t.Helper()
	for {
		if line := receive(t, s.lines, fmt.Sprintf("the log line %q", part)); strings.Contains(line, part) {
			return line
		}
	}
}
