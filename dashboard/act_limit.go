package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/outbox"
)

func (p *Page) limitAct() act {
	return act{
		name: "limit", title: "Change a limit", fields: limitFields,
		inputs: []input{
			{
				Name: "concurrency", Label: "Concurrency", Optional: true,
				Hint: "How many events of a key may be handled at once. Empty means as it is.",
			},
			{
				Name: "rate", Label: "Rate", Optional: true,
				Hint: "How many attempts of a key may start in a period, like 10/1m. Empty means as it is.",
			},
		},
		extras: []input{
			{
				Name: "until", Label: "Until",
				Hint: "A duration like 2h, or a time like 2026-05-01 12:00 (UTC). Empty means until somebody resets it.",
			},
		},
		preview: p.previewLimit,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			scope, value, err := limitOf(form)
			if err != nil {
				return result{}, err
			}
			until, err := untilOf(form.Get("until"))
			if err != nil {
				return result{}, err
			}
			_, err = ops.SetLimit(ctx, scope, value, admin.Act{Until: until})
			return result{}, err
		},
		done: func(result) string { return "Changed. Running processes follow with their next claim." },
		back: p.limitsPage,
	}
}

func (p *Page) limitResetAct() act {
	return act{
		name: "limit-reset", title: "Reset a limit", fields: limitFields,
		preview: p.previewLimitReset,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			scope, _, err := limitOf(form)
			if err != nil {
				return result{}, err
			}
			_, err = ops.ResetLimit(ctx, scope, false, admin.Act{})
			return result{}, err
		},
		done: func(result) string { return "Reset. The limit allows what the YAML says." },
		back: p.limitsPage,
	}
}

// limitFields are the parameters of a limit.
var limitFields = []string{"topic", "per"}

// limitOf returns the limit that form names, and what it is to allow.
func limitOf(form url.Values) (s admin.LimitScope, v admin.LimitValue, err error) {
	namespace, topic, _ := strings.Cut(form.Get("topic"), "/")
	s = admin.LimitScope{Namespace: namespace, Topic: topic, Per: form.Get("per")}
	if namespace == "" || topic == "" {
		return s, v, bad("topic: a namespace and a topic are needed")
	}
	if text := strings.TrimSpace(form.Get("concurrency")); text != "" {
		if v.Concurrency, err = strconv.Atoi(text); err != nil || v.Concurrency < 1 {
			return s, v, bad("concurrency: %q is not a number from 1 on", text)
		}
	}
	if text := strings.TrimSpace(form.Get("rate")); text != "" {
		if v.Rate, err = outbox.ParseRate(text); err != nil {
			return s, v, bad("rate: %v", err)
		}
	}
	return s, v, nil
}

func (p *Page) limitsPage(url.Values) string { return p.view.path("limits") }

func (p *Page) previewLimit(ctx context.Context, form url.Values) (preview, error) {
	scope, value, err := limitOf(form)
	if err != nil {
		return preview{}, err
	}
	if value == (admin.LimitValue{}) {
		limits, err := p.ops.TopicLimits(ctx, scope.Namespace, scope.Topic)
		if err != nil {
			return preview{}, err
		}
		if i := slices.IndexFunc(limits, func(l admin.LimitStatus) bool { return l.LimitScope == scope }); i >= 0 {
			return preview{What: fmt.Sprintf("%s allows %s now. What is it to allow?", scope, limits[i].Value), None: true}, nil
		}
		value.Concurrency = 1 // the dry run says which limits there are
	}
	report, err := p.ops.Preview().SetLimit(ctx, scope, value, admin.Act{DryRun: true})
	if err != nil {
		return preview{}, err
	}
	return previewOf("Change", report.Changed[0]), nil
}

func (p *Page) previewLimitReset(ctx context.Context, form url.Values) (preview, error) {
	scope, _, err := limitOf(form)
	if err != nil {
		return preview{}, err
	}
	report, err := p.ops.Preview().ResetLimit(ctx, scope, false, admin.Act{DryRun: true})
	if err != nil {
		return preview{}, err
	}
	if len(report.Changed) == 0 {
		return preview{What: "Nobody has set the limit of " + scope.String() + ".", None: true}, nil
	}
	return previewOf("Reset", report.Changed[0]), nil
}

// previewOf says what a change of a limit means.
func previewOf(verb string, c admin.LimitChange) preview {
	out := preview{
		What: fmt.Sprintf("%s %s: from %s to %s. It affects ", verb, c.LimitScope, c.Before, c.After),
		Means: "Running processes follow with their next claim, and processes that start later have it too. Events that " +
			"wait are charged no attempt.",
		Count: c.Waiting, Verb: verb + " the limit",
	}
	if c.Per != "" {
		out.What += plural(int64(c.Keys), "key", "keys") + " and "
	}
	out.What += plural(c.Waiting, "event that waits.", "events that wait.")
	switch {
	case c.Over == 0:
	case c.Per == "":
		out.Means += " More is running than it will allow."
	default:
		out.Means += " Of " + plural(int64(c.Over), "key", "keys") + " more is running than it will allow."
	}
	if c.Over > 0 {
		out.Means += " Nothing is cancelled; the next event starts when less is running."
	}
	return out
}
