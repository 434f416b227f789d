package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/admin"
)

func (p *Page) pauseAct() act {
	return act{
		name: "pause", title: "Pause", fields: scopeFields,
		extras: []input{
			{
				Name: "until", Label: "Until",
				Hint: "A duration like 2h, or a time like 2026-05-01 12:00 (UTC). Empty means until somebody resumes it.",
			},
		},
		preview: p.previewPause,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			scope, err := scopeOf(form)
			if err != nil {
				return result{}, err
			}
			until, err := untilOf(form.Get("until"))
			if err != nil {
				return result{}, err
			}
			return result{}, ops.Pause(ctx, scope, admin.Act{Until: until})
		},
		done: func(result) string {
			return "Paused. Running processes honour it within one poll interval."
		},
		back: p.scopePage,
	}
}

func (p *Page) resumeAct() act {
	return act{
		name: "resume", title: "Resume", fields: scopeFields,
		preview: p.previewResume,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			scope, err := scopeOf(form)
			if err != nil {
				return result{}, err
			}
			report, err := ops.Resume(ctx, scope, admin.Act{})
			return result{Others: int64(len(report.Paused))}, err
		},
		done: func(r result) string {
			if r.Others > 0 {
				return fmt.Sprintf("Resumed. It still waits, because %s it too.",
					plural(r.Others, "other pause covers", "other pauses cover"))
			}
			return "Resumed."
		},
		back: p.scopePage,
	}
}

// scopeFields are the parameters of a scope.
var scopeFields = []string{"topic", "tenant", "listener"}

func scopeOf(form url.Values) (admin.Scope, error) {
	f, err := filterOf(url.Values{"topic": form["topic"], "tenant": form["tenant"], "listener": form["listener"]})
	s := admin.Scope{Namespace: f.Namespace, Topic: f.Topic, TenantID: f.TenantID, Listener: f.Listener}
	if err == nil && s == (admin.Scope{}) {
		err = bad("a topic, a tenant or a listener is needed")
	}
	return s, err
}

func (p *Page) scopePage(form url.Values) string {
	if listener := form.Get("listener"); listener != "" {
		return p.view.path("listeners", listener)
	}
	if namespace, topic, ok := strings.Cut(form.Get("topic"), "/"); ok {
		return p.view.path("topics", namespace, topic)
	}
	return p.view.path("")
}

// untilOf reads the end of a pause: a time that is ahead, or a duration.
func untilOf(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return time.Now().Add(d), nil
	}
	t, err := momentOf("until", text)
	if err == nil && !t.IsZero() && !t.After(time.Now()) {
		err = bad("until: %q is over already", text)
	}
	return t, err
}

func (p *Page) previewPause(ctx context.Context, form url.Values) (preview, error) {
	scope, err := scopeOf(form)
	if err != nil {
		return preview{}, err
	}
	if err := p.ops.Preview().Pause(ctx, scope, admin.Act{DryRun: true}); err != nil {
		return preview{}, err
	}
	n := p.waitingIn(ctx, scope)
	return preview{
		What: fmt.Sprintf("Pause %s, where %s now.", scope, plural(n, "event waits", "events wait")),
		Means: "Nothing is claimed or read, running handlers finish, and no attempt is charged. New events can be enqueued " +
			"and wait.",
		Count: n, Verb: "Pause " + scope.String(),
	}, nil
}

func (p *Page) previewResume(ctx context.Context, form url.Values) (preview, error) {
	scope, err := scopeOf(form)
	if err != nil {
		return preview{}, err
	}
	report, err := p.ops.Preview().Resume(ctx, scope, admin.Act{DryRun: true})
	if err != nil {
		return preview{}, err
	}
	if !report.Resumed {
		return preview{What: scope.String() + " is not paused itself.", None: true}, nil
	}
	n := p.waitingIn(ctx, scope)
	out := preview{
		What: fmt.Sprintf("Resume %s, where %s now.", scope, plural(n, "event waits", "events wait")), Count: n,
		Verb: "Resume " + scope.String(),
	}
	for _, other := range report.Paused {
		out.Means += fmt.Sprintf("It still waits, because %s has paused %s. ", other.Who, other.Scope)
	}
	return out, nil
}

// waitingIn is how many events wait in a scope, by the latest overview. It does not know those of one tenant.
func (p *Page) waitingIn(ctx context.Context, scope admin.Scope) int64 {
	o := p.overview.get(ctx, freshFor, waitFor).value
	var n int64
	for _, t := range o.Topics {
		if scope.Listener == "" && (scope.Namespace == "" || scope.Namespace == t.Namespace) &&
			(scope.Topic == "" || scope.Topic == t.Topic) {
			n += t.Due.N + t.Expired.N
		}
	}
	for _, l := range o.Listeners {
		if l.Listener == scope.Listener {
			n += l.Unread + l.ParkedEvents
		}
	}
	return n
}
