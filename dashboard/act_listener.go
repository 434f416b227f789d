package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
)

func (p *Page) skipAct() act {
	return act{
		name: "skip", title: "Skip an event", fields: []string{"listener", "id"}, danger: true, needsWhy: true,
		preview: p.previewSkip,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			id, err := idOf(form)
			if err != nil {
				return result{}, err
			}
			_, err = ops.Skip(ctx, form.Get("listener"), id)
			return result{N: 1, Of: 1}, err
		},
		done: func(result) string { return "Skipped. The event is a dead letter of the listener now." },
		back: p.listenerPage,
	}
}

func (p *Page) rewindAct() act {
	return act{
		name: "rewind", title: "Rewind", fields: []string{"listener"}, needsWhy: true,
		inputs: []input{
			{
				Name: "to", Label: "To",
				Hint: "A time like 2026-05-01 12:00:00 (UTC), an age like 90m, " +
					"or “earliest” for all events that are still in the log.",
			},
		},
		preview: p.previewRewind,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			to, err := rewindTime(form)
			if err != nil {
				return result{}, err
			}
			n, err := ops.Rewind(ctx, form.Get("listener"), to)
			return result{N: n, Of: n}, err
		},
		done: func(r result) string {
			return "Rewound. The listener has " + plural(r.N, "event", "events") + " before it."
		},
		back: p.listenerPage,
	}
}

func (p *Page) detachAct() act {
	return act{
		name: "detach", title: "Detach", fields: []string{"listener"}, danger: true, needsWhy: true,
		preview: p.previewDetach,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			report, err := ops.Detach(ctx, form.Get("listener"))
			return result{N: report.Parked, Of: report.Parked}, err
		},
		done: func(result) string { return "Detached. The log is no longer kept for the listener." },
		back: func(url.Values) string { return p.view.path("listeners") },
	}
}

func (p *Page) listenerPage(form url.Values) string {
	return p.view.path("listeners", form.Get("listener"))
}

func idOf(form url.Values) (uuid.UUID, error) {
	text := strings.TrimSpace(form.Get("id"))
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.Nil, bad("id: %q is not a valid UUID", text)
	}
	return id, nil
}

func (p *Page) previewSkip(ctx context.Context, form url.Values) (preview, error) {
	id, err := idOf(form)
	if err != nil {
		return preview{}, err
	}
	e, err := p.ops.Preview().Skip(ctx, form.Get("listener"), id)
	if err != nil {
		return preview{}, err
	}
	form.Set("id", e.ID.String()) // what is confirmed is this event, even if another one is the next by then
	return preview{
		What:  fmt.Sprintf("Skip 1 event: %s of %s/%s, at listener %s.", e.ID, e.Namespace, e.Topic, form.Get("listener")),
		Means: "The listener passes it without handling it. It becomes a dead letter, which can be replayed.",
		Count: 1, Verb: "Skip 1 event",
	}, nil
}

func rewindTime(form url.Values) (time.Time, error) {
	switch text := strings.TrimSpace(form.Get("to")); text {
	case "":
		return time.Time{}, bad("to: say to which time")
	case "earliest":
		return time.Time{}, nil
	default:
		return momentOf("to", text)
	}
}

func (p *Page) previewRewind(ctx context.Context, form url.Values) (preview, error) {
	if strings.TrimSpace(form.Get("to")) == "" {
		return preview{What: "To which time?", None: true}, nil
	}
	to, err := rewindTime(form)
	if err != nil {
		return preview{}, err
	}
	n, err := p.ops.Preview().Rewind(ctx, form.Get("listener"), to)
	if err != nil {
		return preview{}, err
	}
	if !to.IsZero() {
		form.Set("to", to.UTC().Format(time.RFC3339Nano)) // an age would mean a later time when it is confirmed
	}
	return preview{
		What: fmt.Sprintf("Rewind listener %s. Afterwards it has %s before it.", form.Get("listener"),
			plural(n, "event", "events")),
		Means: "It handles events again that it has handled before. Attempts count from 1 again.",
		Count: n, Verb: "Rewind to " + plural(n, "event", "events"),
	}, nil
}

func (p *Page) previewDetach(ctx context.Context, form url.Values) (preview, error) {
	report, err := p.ops.Preview().Detach(ctx, form.Get("listener"))
	if err != nil {
		return preview{}, err
	}
	return preview{
		What: fmt.Sprintf("Detach listener %s: its %s and %s are deleted.", form.Get("listener"),
			plural(int64(report.Shards), "cursor", "cursors"), plural(report.Parked, "parked event", "parked events")),
		Means: "A process that runs it ends with an error. If it is started again, it begins where the YAML says.",
		Count: report.Parked, Verb: "Detach " + form.Get("listener"),
	}, nil
}
