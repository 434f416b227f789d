package report

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Lasting logs conditions that last: a line when one is found first, and one when it is found no more. It is not safe
// for concurrent use.
type Lasting struct {
	Log        *slog.Logger
	Level      slog.Level // of Begin; End is at INFO
	Begin, End string
	since      map[string]lasting
}

type lasting struct {
	at time.Time
	id []any
}

// Condition is one that was found.
type Condition struct {
	ID    []any // attributes that tell it from others
	Attrs []any // more attributes of the first line
}

// Found records all conditions that were found.
func (l *Lasting) Found(conditions ...Condition) {
	now, before := time.Now(), l.since
	l.since = make(map[string]lasting, len(conditions))
	for _, c := range conditions {
		name := fmt.Sprint(c.ID...)
		known, lasts := before[name]
		if !lasts {
			known = lasting{now, c.ID}
			l.Log.Log(context.Background(), l.Level, l.Begin, append(append([]any{}, c.ID...), c.Attrs...)...)
		}
		l.since[name] = known
	}
	for name, c := range before {
		if _, lasts := l.since[name]; !lasts {
			l.Log.Info(l.End, append(append([]any{}, c.id...), "after", now.Sub(c.at).Round(time.Second))...)
		}
	}
}
