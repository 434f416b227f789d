package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
)

func (p *Page) forgetProcessAct() act {
	return act{
		name: "forget-process", title: "Forget a process", fields: []string{"process"},
		preview: p.previewForgetProcess,
		do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
			id, err := processOf(form)
			if err != nil {
				return result{}, err
			}
			_, err = ops.ForgetProcess(ctx, id)
			return result{}, err
		},
		done: func(result) string { return "Forgotten. A process that still runs comes back with its next beat." },
		back: func(url.Values) string { return p.view.path("") },
	}
}

func processOf(form url.Values) (uuid.UUID, error) {
	id, err := uuid.Parse(form.Get("process"))
	if err != nil || id == uuid.Nil {
		return id, bad("process: %q is not the id of a process", form.Get("process"))
	}
	return id, nil
}

func (p *Page) previewForgetProcess(ctx context.Context, form url.Values) (preview, error) {
	id, err := processOf(form)
	if err != nil {
		return preview{}, err
	}
	gone, err := p.ops.Preview().ForgetProcess(ctx, id)
	if err != nil {
		return preview{}, err
	}
	var names []string
	for _, g := range gone {
		names = append(names, fmt.Sprintf("%s %s at %s, pid %d", g.Kind, g.Name, g.Host, g.PID))
	}
	return preview{
		What: "Forget " + strings.Join(names, "; ") + ".",
		Means: "Its row is deleted, and nothing else. If the process still runs, it comes back with its next beat, within half " +
			"a minute.",
		Verb: "Forget it",
	}, nil
}
