package dashboard

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/admin"
)

func (p *Page) replayAct() act {
	return act{
		name: "replay", title: "Replay dead letters", fields: filterFields,
		preview: p.previewDead("Replay",
			"They are delivered again: those of a queue topic by its dispatchers, those of a listener by that listener alone.",
			"They are parked again, each before the later messages of its key. A running process of the consumer tries them "+
				"immediately."),
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			return doDead(ctx, form, ops.Replay)
		},
		done: func(r result) string { return r.changed("replayed") },
		back: p.deadPage,
	}
}

func (p *Page) discardAct() act {
	return act{
		name: "discard", title: "Discard dead letters", fields: filterFields, danger: true, needsWhy: true,
		preview: p.previewDead("Discard",
			"They are deleted and can never be delivered. Events of log topics stay in the log.",
			"They are deleted, and the consumer never applies them, unless their broker delivers them again."),
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			return doDead(ctx, form, ops.Discard)
		},
		done: func(r result) string { return r.changed("discarded") },
		back: p.deadPage,
		// The page of a discarded event of a queue topic is not there any more.
		after: func(form url.Values) string {
			if path, ok := p.consumerPage(form); ok {
				return path
			}
			return p.view.path("dead")
		},
	}
}

// previewDead counts the dead letters that a filter selects. What follows differs for those of consumers.
func (p *Page) previewDead(verb, meansEvents, meansMessages string) func(context.Context, url.Values) (preview, error) {
	return func(ctx context.Context, form url.Values) (preview, error) {
		filter, err := filterOf(form)
		if err != nil {
			return preview{}, err
		}
		report, err := p.ops.Replay(ctx, filter, admin.Act{DryRun: true})
		if err != nil {
			return preview{}, err
		}
		n, means := report.Matched, meansEvents
		if filter.Consumer != "" {
			means = meansMessages
		}
		return preview{
			What:  fmt.Sprintf("%s: %s.", filterText(form), plural(n, "dead letter", "dead letters")),
			Means: means, Count: n, Verb: verb + " " + plural(n, "dead letter", "dead letters"), None: n == 0,
		}, nil
	}
}

// doDead changes at most as many dead letters as the preview counted: those that have died first.
func doDead(
	ctx context.Context, form url.Values, do func(context.Context, admin.Filter, admin.Act) (admin.Report, error),
) (result, error) {
	filter, err := filterOf(form)
	if err != nil {
		return result{}, err
	}
	limit, err := strconv.Atoi(form.Get("count"))
	if err != nil || limit < 1 {
		return result{}, bad("count: the form does not say how many events were shown")
	}
	report, err := do(ctx, filter, admin.Act{Limit: limit})
	r := result{N: report.Done, Of: report.Matched, Why: slices.Collect(maps.Keys(report.Refused))}
	for _, n := range report.Refused {
		r.Refused += n
	}
	return r, err
}

// filterText says in words what a filter selects.
func filterText(form url.Values) string {
	var parts []string
	for _, name := range filterFields {
		if v := form.Get(name); v != "" && name != "status" {
			parts = append(parts, name+" "+shortText(v))
		}
	}
	if len(parts) == 0 {
		return "All topics and listeners"
	}
	return strings.ToUpper(parts[0][:1]) + strings.Join(parts, ", ")[1:]
}

// deadPage is where dead letters are, for the event or for the filter of form.
func (p *Page) deadPage(form url.Values) string {
	if path, ok := p.consumerPage(form); ok {
		return path
	}
	if id := form.Get("id"); id != "" && !strings.ContainsAny(id, ", ") {
		return p.view.path("events", id)
	}
	return p.view.path("dead")
}
