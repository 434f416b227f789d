package dashboard

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/admin"
)

// findingsFresh is how long findings are shown before the checks run again by themselves.
const findingsFresh = 10 * time.Minute

type doctorBody struct {
	Findings []admin.Finding
	Checks   string // that ran
	Running  bool
}

func (p *Page) showDoctor(w http.ResponseWriter, r *http.Request) {
	d := p.doctor.get(r.Context(), findingsFresh, waitFor)
	if d.at.IsZero() && d.err != nil {
		p.fail(w, r, d.err)
		return
	}
	f := frame{Name: "doctor", Title: "Doctor", ReadAt: d.at}
	body := doctorBody{Findings: d.value, Checks: strings.Join(admin.DoctorChecks(), ", ")}
	if p.doctor.busy() {
		f.Live, f.Reload, body.Running = true, true, true
	}
	f.Body = body
	p.show(w, r, http.StatusOK, f)
}

// runDoctor runs the checks again. They change nothing, so a read-only page has them too.
func (p *Page) runDoctor(w http.ResponseWriter, r *http.Request) {
	p.doctor.forget()
	p.doctor.get(context.WithoutCancel(r.Context()), findingsFresh, waitFor)
	http.Redirect(w, r, p.view.path("doctor"), http.StatusSeeOther)
}

type auditBody struct {
	Who, Action string
	Entries     []admin.AuditEntry
	Next, First string
}

func (p *Page) showAudit(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	body := auditBody{Who: strings.TrimSpace(query.Get("who")), Action: strings.TrimSpace(query.Get("action"))}
	page, err := p.ops.Audit(r.Context(), admin.AuditFilter{Who: body.Who, Action: body.Action}, admin.Page{
		Limit: eventsLimit, After: query.Get("after"),
	})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	link := func(after string) string {
		q := query
		q.Del("after")
		if after != "" {
			q.Set("after", after)
		}
		return p.view.path("audit") + "?" + q.Encode()
	}
	body.Entries = page.Entries
	if query.Get("after") != "" {
		body.First = link("")
	}
	if page.Next != "" {
		body.Next = link(page.Next)
	}
	p.show(w, r, http.StatusOK, frame{Name: "audit", Title: "Audit", ReadAt: time.Now(), Body: body})
}
