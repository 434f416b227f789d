package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
)

// A forget is not one of the acts, whose forms travel in addresses: whom it is about must not stay in the history of a
// browser or in the log of a proxy. So both its plan and its confirmation are a POST.

// forgetBody is what the page shows: the form that asks whom to forget, and the plan if it was asked for.
type forgetBody struct {
	Path                              string
	Tenant, Entity                    string // as they were typed
	AnyTenant, Undelivered, Processed bool
	Why                               string
	Problem                           string // what is wrong with what was typed, or has changed since
	Plan                              *forgetPlan
}

// forgetPlan is what a forget would delete.
type forgetPlan struct {
	admin.ForgetReport
	Of       string // "tenant 6f1f..."
	What     string // a sentence
	Count    int64  // rows that would be deleted
	Audit    int64  // entries of the audit from which something would be removed
	Refusals []string
	More     int64 // undelivered events that are not listed
	None     bool  // there is nothing to do
}

// mayForget reports whether who sends r may forget a tenant or an entity.
func (p *Page) mayForget(r *http.Request) bool {
	return !p.cfg.ReadOnly && p.cfg.AuthorizeForget != nil && p.cfg.AuthorizeForget(r) == nil
}

// forgets lets those who may forget a tenant or an entity through to h.
func (p *Page) forgets(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if p.mayForget(r) {
			h(w, r)
			return
		}
		p.show(w, r, http.StatusForbidden, frame{Name: "problem", Title: "Forbidden", Body: problem{
			"Nobody has allowed you to forget a tenant or an entity: AuthorizeForget decides that.", "Nothing was changed.",
		}})
	}
}

// showForget asks whom to forget.
func (p *Page) showForget(w http.ResponseWriter, r *http.Request) {
	p.showForgetForm(w, r, http.StatusOK, forgetBody{}, p.doneText(r.URL.Query()))
}

const forgetTitle = "Forget a tenant or an entity"

func (p *Page) showForgetForm(w http.ResponseWriter, r *http.Request, status int, body forgetBody, done string) {
	body.Path = p.view.path("forget")
	p.show(w, r, status, frame{Name: "forget", Title: forgetTitle, Done: done, Body: body})
}

// doForget shows what would be deleted, and deletes it when somebody confirms that with the number of rows.
func (p *Page) doForget(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, bad("the form cannot be read: %v", err))
		return
	}
	form := r.PostForm
	body := forgetOf(form)
	scope, err := body.scope()
	if err != nil {
		body.Problem = err.Error()
		p.showForgetForm(w, r, http.StatusBadRequest, body, "")
		return
	}
	act := admin.Act{Who: whoIs(r.Context()), Why: body.Why, DryRun: true}
	plan, err := p.ops.Forget(r.Context(), scope, act)
	if err != nil {
		p.failForget(w, r, body, err)
		return
	}
	body.Plan = planOf(plan, scope)
	status := http.StatusOK
	if form.Has("count") {
		if status, body.Problem = body.confirmed(form.Get("count")); status == http.StatusOK {
			p.forget(w, r, body, scope, act)
			return
		}
	}
	p.showForgetForm(w, r, status, body, "")
}

// forgetOf reads the form.
func forgetOf(form url.Values) forgetBody {
	return forgetBody{
		Tenant: strings.TrimSpace(form.Get("tenant")), Entity: strings.TrimSpace(form.Get("entity")),
		AnyTenant: form.Has("any_tenant"), Undelivered: form.Has("undelivered"), Processed: form.Has("processed"),
		Why: strings.TrimSpace(form.Get("why")),
	}
}

// scope returns whom the form names.
func (b *forgetBody) scope() (s admin.ForgetScope, err error) {
	s = admin.ForgetScope{AnyTenant: b.AnyTenant, Undelivered: b.Undelivered, Processed: b.Processed}
	if b.Tenant != "" {
		id, err := uuid.Parse(b.Tenant)
		if err != nil || id == uuid.Nil {
			return s, bad("tenant: %q is not a valid tenant: use its UUID", b.Tenant)
		}
		s.TenantID = uuid.NullUUID{UUID: id, Valid: true}
	}
	if b.Entity != "" {
		s.EntityType, s.EntityID, _ = strings.Cut(b.Entity, "/")
		if s.EntityType == "" || s.EntityID == "" {
			return s, bad("entity: %q is not an entity: use its type and its id, like order/4711", b.Entity)
		}
	}
	switch {
	case b.Tenant == "" && b.Entity == "":
		return s, bad("Nothing is named: give a tenant, an entity, or both.")
	case b.AnyTenant && b.Entity == "":
		return s, bad("\"Of every tenant\" is for an entity: give one, or clear it.")
	case b.AnyTenant && b.Tenant != "":
		return s, bad("\"Of every tenant\" and a tenant exclude each other: clear one of them.")
	}
	return s, nil
}

// planOf returns a report of a dry run as the page shows it.
func planOf(r admin.ForgetReport, scope admin.ForgetScope) *forgetPlan {
	plan := &forgetPlan{ForgetReport: r, Of: scope.String(), More: r.Undelivered - int64(len(r.Listed))}
	if scope.AnyTenant {
		plan.Of += " of every tenant"
	}
	for _, t := range r.Tables {
		switch {
		case t.Table == "audit":
			plan.Audit = t.Found
		case t.Table != "processed_events" || scope.Processed:
			plan.Count += t.Found
		}
	}
	plan.What = fmt.Sprintf("Forget %s: %s.", plan.Of, plural(plan.Count, "row", "rows"))
	plan.None = plan.Count == 0 && plan.Audit == 0 && !r.Resumed
	for _, why := range r.Reasons {
		plan.Refusals = append(plan.Refusals, refusalText(why))
	}
	return plan
}

// refusalText says why a forget would not begin, and what to do on this page.
func refusalText(why error) string {
	var waits *admin.UndeliveredError
	var replay *admin.ReplayRunsError
	var several *admin.SeveralTenantsError
	switch {
	case errors.As(why, &waits):
		return plural(waits.Count, "event is", "events are") + " not delivered yet. Wait until nothing is, or choose " +
			"above to delete what is not delivered, too."
	case errors.As(why, &replay):
		return fmt.Sprintf("A replay of %s has been running since %s, and may have the same events. Wait for its end.",
			replay.Who, stampText(replay.Since))
	case errors.As(why, &several):
		var names []string
		for _, t := range several.Tenants {
			name := "no tenant"
			if t.Valid {
				name = t.UUID.String()
			}
			names = append(names, name)
		}
		return fmt.Sprintf("%s is an entity of several tenants: %s. Name one of them above, or choose every tenant.",
			several.Entity, strings.Join(names, ", "))
	}
	return why.Error()
}

// confirmed checks the confirmation of b.Plan, which was made after it. It returns the status 200 if the forget may
// begin.
func (b *forgetBody) confirmed(typed string) (status int, problem string) {
	switch {
	case len(b.Plan.Refusals) > 0:
		return http.StatusConflict, "Nothing was changed: see below why not."
	case b.Plan.None:
		return http.StatusConflict, "Nothing was changed: there is nothing to forget."
	case b.Why == "":
		return http.StatusBadRequest, "Nothing was changed: say why, because this is recorded in the audit."
	case strings.NewReplacer(",", "", " ", "").Replace(typed) != fmt.Sprint(b.Plan.Count):
		return http.StatusConflict, fmt.Sprintf("Nothing was changed: you have typed %s, and there are %s now.",
			shortText(typed), plural(b.Plan.Count, "row", "rows"))
	}
	return http.StatusOK, ""
}

// forgetWait is Page.forgetWait outside tests.
const forgetWait = 5 * time.Second

// forget deletes what scope names. It goes on if the window is closed, and ends early when the page is closed: another
// forget of the same scope then goes on with it.
func (p *Page) forget(w http.ResponseWriter, r *http.Request, body forgetBody, scope admin.ForgetScope, act admin.Act) {
	if p.ctx.Err() != nil {
		p.fail(w, r, p.ctx.Err())
		return
	}
	type end struct {
		report admin.ForgetReport
		err    error
	}
	ended := make(chan end, 1)
	act.DryRun = false
	p.running.Go(func() {
		report, err := p.ops.Forget(p.ctx, scope, act)
		p.overview.forget()
		p.groups.forget()
		p.logForget(act.Who, report, err)
		ended <- end{report, err}
	})
	timer := time.NewTimer(p.forgetWait)
	defer timer.Stop()
	select {
	case e := <-ended:
		if e.err != nil {
			p.failForget(w, r, body, e.err)
			return
		}
		q := result{N: e.report.Rows, Of: e.report.Events}.query("forget")
		http.Redirect(w, r, p.view.path("forget")+"?"+q.Encode(), http.StatusSeeOther)
	case <-timer.C:
		http.Redirect(w, r, p.view.path("forget")+"?"+url.Values{"did": {"forget-runs"}}.Encode(), http.StatusSeeOther)
	case <-r.Context().Done():
	}
}

// logForget reports the end of a forget, and never whom it was about.
func (p *Page) logForget(who string, r admin.ForgetReport, err error) {
	ctx := context.Background()
	switch {
	case err == nil:
		p.cfg.Logger.InfoContext(ctx, "dashboard: acted", "act", "forget", "who", who, "events", r.Events, "rows", r.Rows)
	case len(r.Reasons) > 0: // their texts may name it
		p.cfg.Logger.InfoContext(ctx, "dashboard: forget refused", "who", who)
	default:
		p.cfg.Logger.WarnContext(ctx, "dashboard: forget ended early", "who", who, "rows", r.Rows, "error", err)
	}
}

// failForget shows the form again if err is about what was typed, or about the state of what it names.
func (p *Page) failForget(w http.ResponseWriter, r *http.Request, body forgetBody, err error) {
	var argument *admin.ArgumentError
	var unknown *admin.UnknownEntityError
	var waits *admin.UndeliveredError
	status := http.StatusConflict
	switch {
	case errors.As(err, &argument):
		status, body.Problem = http.StatusBadRequest, "Nothing was changed: "+argument.Problem+"."
	case errors.As(err, &unknown):
		status, body.Problem = http.StatusNotFound, unknownText(unknown)
	case errors.As(err, &waits) && waits.Deleted:
		body.Problem = plural(waits.Count, "event has come meanwhile and is", "events have come meanwhile and are") +
			" not delivered yet. Everything else was deleted. Stop what enqueues, wait, and forget again."
	case errors.As(err, &waits), errors.As(err, new(*admin.ReplayRunsError)),
		errors.As(err, new(*admin.SeveralTenantsError)):
		body.Problem = "Nothing was changed, because something has come meanwhile. " + refusalText(err)
	default:
		p.fail(w, r, err)
		return
	}
	body.Plan = nil
	p.showForgetForm(w, r, status, body, "")
}

func unknownText(e *admin.UnknownEntityError) string {
	known := "No event here has an entity."
	if len(e.Known) > 0 {
		known = "The types here: " + strings.Join(e.Known, ", ") + "."
	}
	return fmt.Sprintf("entity: no event has an entity of the type %q. %s", e.Type, known)
}

// forgotText says what a forget has done.
func forgotText(r result) string {
	text := "Forgotten: " + plural(r.N, "row was", "rows were") + " deleted, " + commas(r.Of) + " of them events."
	if r.Of > 0 {
		text += " Their dedupe keys are free again."
	}
	return text
}

// forgetTables says what the tables keep.
var forgetTables = map[string]string{
	"events":            "events of queue topics",
	"queue":             "their state, if they are not delivered yet",
	"delivered":         "their state, if they are delivered",
	"log":               "events of log topics",
	"dead_letters":      "events that were given up",
	"listener_failures": "failed attempts of listeners, with their errors",
	"parked":            "events that listeners have put aside",
	"inbox_messages":    "messages that consumers keep",
	"inbox_quarantined": "messages that came to a consumer too late",
	"entity_versions":   "the versions that consumers have seen",
	"processed_events":  "which events consumers have handled",
	"pauses":            "pauses of the tenant",
	"limit_usage":       "keys of limits that name the tenant",
	"audit":             "entries that name it",
}
