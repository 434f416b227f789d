// Package lograte limits how often the same line is logged. Clients of brokers repeat the same complaint many times per
// second while a server is away.
package lograte

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// every is how often a line is logged at its level.
	every = time.Minute
	// maxLines is how many lines are remembered.
	maxLines = 1000
)

// Limit logs the same line at most once per minute. Its repetitions are logged at DEBUG, and the next line that is
// logged at its level has their number as not_logged. It is safe for concurrent use.
type Limit struct {
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex
	lines map[line]*said
}

// line is what makes a line the same.
type line struct {
	level     slog.Level
	text, key string
}

// said is when a line was logged, and how often it was not since.
type said struct {
	at        time.Time
	notLogged int
}

// New returns a Limit that writes to log.
func New(log *slog.Logger) *Limit {
	return &Limit{log: log, now: time.Now, lines: make(map[line]*said)}
}

// Log logs a line, as slog.Logger.Log does. Lines with the same level and text are the same.
func (l *Limit) Log(ctx context.Context, level slog.Level, text string, attrs ...any) {
	l.write(ctx, line{level: level, text: text}, attrs)
}

// About returns what logs lines that are only the same if they are about the same key.
func (l *Limit) About(key string) About { return About{limit: l, key: key} }

// About is a Limit for lines about one key.
type About struct {
	limit *Limit
	key   string
}

// Log logs a line about the key.
func (a About) Log(ctx context.Context, level slog.Level, text string, attrs ...any) {
	a.limit.write(ctx, line{level: level, text: text, key: a.key}, attrs)
}

func (l *Limit) write(ctx context.Context, is line, attrs []any) {
	level := is.level
	if level > slog.LevelDebug {
		again, notLogged := l.again(is)
		if again {
			level = slog.LevelDebug
		} else if notLogged > 0 {
			attrs = append(attrs[:len(attrs):len(attrs)], "not_logged", notLogged)
		}
	}
	l.log.Log(ctx, level, is.text, attrs...)
}

// again reports whether a line was logged less than a minute ago. If not, it is logged now, and notLogged is how often
// it was not since the last time.
func (l *Limit) again(is line) (again bool, notLogged int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	s := l.lines[is]
	if s != nil && now.Sub(s.at) < every {
		s.notLogged++
		return true, 0
	}
	if s == nil {
		if len(l.lines) >= maxLines {
			l.forget(now)
		}
		s = &said{}
		l.lines[is] = s
	}
	s.at, notLogged, s.notLogged = now, s.notLogged, 0
	return false, notLogged
}

// forget forgets the lines that may be logged again, or all if there are none. The caller holds l.mu.
func (l *Limit) forget(now time.Time) {
	for is, s := range l.lines {
		if now.Sub(s.at) >= every {
			delete(l.lines, is)
		}
	}
	if len(l.lines) >= maxLines {
		clear(l.lines)
	}
}
