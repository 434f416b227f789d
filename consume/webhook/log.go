package webhook

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
)

// quiet is how long a trouble that lasts gets no further line.
const quiet = time.Minute

// stateLog writes a line when a trouble begins and when it ends, and one per minute while it lasts.
type stateLog struct {
	to      *slog.Logger
	ongoing atomic.Int64 // the troubles of which a line was written, and which an applied event ends

	mu       sync.Mutex
	troubles map[trouble]*since
}

// line is a line of the log.
type line struct {
	level slog.Level
	text  string
}

// The lines about troubles.
var (
	lineAway = line{
		slog.LevelWarn, "database does not answer: events are refused with 503, and the sender sends them again",
	}
	lineTables = line{
		slog.LevelError,
		"tables of the inbox are missing or old: events are refused with 503, and the sender sends them again",
	}
	lineFails   = line{slog.LevelWarn, "events fail: the sender sends them again"}
	lineRefused = line{slog.LevelWarn, "events are refused permanently: their sender keeps them as dead letters"}
	lineForeign = line{slog.LevelWarn, "requests are refused: they are not signed, or not what this receiver takes"}
	lineBusy    = line{slog.LevelWarn, "requests wait too long for others: raise Concurrency, or make the consumer faster"}
)

// trouble is a line, and what it is about: a type of event, or a status.
type trouble struct {
	line
	about string
}

// ends reports whether an applied event ends the trouble.
func (t trouble) ends() bool {
	return t.line == lineAway || t.line == lineTables || t.line == lineFails
}

// since counts what has happened since the last line. It stays after the end of a trouble, so that one that comes and
// goes does not fill the log.
type since struct {
	line time.Time
	more int
	told bool // the line has been written, and none about the end
}

func newLog(to *slog.Logger) *stateLog {
	return &stateLog{to: to, troubles: make(map[trouble]*since)}
}

// answered notes the answer to a request. e is the zero Event if the request was refused before it was read.
func (l *stateLog) answered(q *http.Request, e *consume.Event, a answer) {
	ctx := q.Context()
	if a.status == http.StatusNoContent {
		if l.ongoing.Load() > 0 {
			l.recovered(ctx, e)
		}
	}
	if l.to.Enabled(ctx, slog.LevelDebug) {
		l.to.LogAttrs(ctx, slog.LevelDebug, "request answered", attrs(e, a)...)
	}
	switch {
	case a.status == http.StatusNoContent || a.gone:
	case a.away && errors.Is(a.err, inbox.ErrNotMigrated):
		l.begins(ctx, trouble{lineTables, ""}, attrs(e, a))
	case a.away:
		l.begins(ctx, trouble{lineAway, ""}, attrs(e, a))
	case a.status == http.StatusTooManyRequests:
		l.begins(ctx, trouble{lineBusy, ""}, attrs(e, a))
	case a.status >= http.StatusInternalServerError:
		l.begins(ctx, trouble{lineFails, e.Type}, attrs(e, a))
	case a.err != nil && a.status != http.StatusUnauthorized && a.status != http.StatusRequestTimeout:
		kind := e.Type
		if a.unknown {
			kind = "" // any number of types is unknown
		}
		l.begins(ctx, trouble{lineRefused, kind}, attrs(e, a))
	default:
		l.begins(ctx, trouble{lineForeign, http.StatusText(a.status)},
			append(attrs(e, a), slog.String("remote_addr", q.RemoteAddr)))
	}
}

// begins writes a line about t, unless there was one a short time ago.
func (l *stateLog) begins(ctx context.Context, t trouble, about []slog.Attr) {
	l.mu.Lock()
	s := l.troubles[t]
	if s == nil {
		s = new(since)
		l.troubles[t] = s
	}
	s.more++
	more, now := s.more, time.Now()
	if now.Sub(s.line) < quiet {
		l.mu.Unlock()
		return
	}
	if t.ends() && !s.told {
		l.ongoing.Add(1)
	}
	s.line, s.more, s.told = now, 0, true
	l.mu.Unlock()
	l.to.LogAttrs(ctx, t.level, t.text, append(about, slog.Int("times", more))...)
}

// recovered writes a line for each trouble that the applied event e ends.
func (l *stateLog) recovered(ctx context.Context, e *consume.Event) {
	l.mu.Lock()
	var away, tables, fails bool
	for _, t := range [...]trouble{{lineAway, ""}, {lineTables, ""}, {lineFails, e.Type}} {
		if s := l.troubles[t]; s != nil && s.told {
			away, tables, fails = away || t.line == lineAway, tables || t.line == lineTables, fails || t.line == lineFails
			s.told = false
			l.ongoing.Add(-1)
		}
	}
	l.mu.Unlock()
	if away {
		l.to.LogAttrs(ctx, slog.LevelInfo, "database answers again")
	}
	if tables {
		l.to.LogAttrs(ctx, slog.LevelInfo, "tables of the inbox are there again")
	}
	if fails {
		l.to.LogAttrs(ctx, slog.LevelInfo, "events are applied again", slog.String("type", e.Type))
	}
}

func attrs(e *consume.Event, a answer) []slog.Attr {
	list := []slog.Attr{slog.Int("status", a.status)}
	if e.Type != "" {
		list = append(list, slog.String("type", e.Type), slog.Any("", e))
	}
	if err := a.reason(); err != nil {
		list = append(list, slog.String("error", err.Error()))
	}
	return list
}
