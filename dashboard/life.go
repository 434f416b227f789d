package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
)

// node is an event in a tree of what has caused what.
type node struct {
	*admin.EventLife
	Entity string // as type/id, "" for none
	Here   bool   // it is the event of the page
	Orphan bool   // its cause is not there
	Around []string
	Caused []node
}

// treeOf returns the nodes of events, which are below depth others. here is the event of the page.
func treeOf(events []*admin.EventLife, depth int, here uuid.UUID) []node {
	nodes := make([]node, len(events))
	for i, e := range events {
		nodes[i] = node{
			EventLife: e, Here: e.ID == here, Orphan: depth == 0 && e.Causation != "", Around: around(e),
			Caused: treeOf(e.Caused, depth+1, here),
		}
		if e.Entity.Type != "" {
			nodes[i].Entity = e.Entity.Type + "/" + e.Entity.ID
		}
	}
	return nodes
}

// around says in lines what happened to an event besides its state.
func around(e *admin.EventLife) []string {
	var lines []string
	if e.LastError != "" {
		lines = append(lines, "last error: "+shortText(firstLine(e.LastError)))
	}
	for _, l := range e.Listeners {
		text := fmt.Sprintf("listener %s: %s", l.Listener, l.Status)
		if n := max(l.Attempts, len(l.Failures)); n > 0 {
			text += fmt.Sprintf(", failed attempts: %d", n)
		}
		if l.LastError != "" {
			text += ": " + shortText(firstLine(l.LastError))
		}
		lines = append(lines, text)
	}
	for _, c := range e.Consumers {
		lines = append(lines, consumerText(c))
	}
	for _, act := range e.Acts {
		lines = append(lines, actText(act))
	}
	return lines
}

func stampText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func consumerText(c admin.EventAtConsumer) string {
	text := fmt.Sprintf("consumer %s: %s at %s", c.Consumer, c.Status, stampText(c.At))
	if c.Attempts > 0 {
		text += fmt.Sprintf(", attempts: %d: %s", c.Attempts, shortText(firstLine(c.LastError)))
	}
	return text
}

// actText says what an operator did. One that only fits the event may not have touched it.
func actText(act admin.EventAct) string {
	text := fmt.Sprintf("%s by %s at %s", act.Action, act.Who, stampText(act.At))
	if act.Why != "" {
		text += ": " + act.Why
	}
	if !act.Certain {
		text += " (of " + act.Scope + ", which may include it)"
	}
	return text
}

type lifeBody struct {
	Entity   string // as type/id, if it is about one
	Tenant   string // if it is about one
	Tree     []node
	Versions []admin.EntityVersion
	More     bool
	Next     string // the URL of the next page
	List     string // the URL of the same events as a list
}

func (p *Page) showLife(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	filter, err := filterOf(query)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := lifeBody{
		List:   p.view.path("events") + "?" + onlyFilter(query),
		Entity: strings.TrimSpace(query.Get("entity")), Tenant: strings.TrimSpace(query.Get("tenant")),
	}
	page := admin.Page{Limit: eventsLimit, After: query.Get("after")}
	var life admin.LifePage
	for start := time.Now(); ; {
		if life, err = p.ops.Life(r.Context(), filter, page); err != nil {
			p.fail(w, r, err)
			return
		}
		if page.After = life.Next; len(life.Events) > 0 || life.Next == "" || time.Since(start) > searchTime {
			break
		}
	}
	title := "What happened"
	for _, of := range []struct{ name, words string }{
		{"entity", " to "}, {"correlation", " in the chain "}, {"key", " to the key "}, {"tenant", " to the tenant "},
	} {
		if text := strings.TrimSpace(query.Get(of.name)); text != "" {
			title += of.words + shortText(text)
			break
		}
	}
	body.Tree, body.Versions, body.More = treeOf(life.Events, 0, uuid.Nil), life.Versions, life.More
	if life.Next != "" {
		body.Next = p.view.path("life") + "?" + onlyFilter(query, "after", life.Next)
	}
	p.show(w, r, http.StatusOK, frame{Name: "life", Title: title, Live: true, ReadAt: time.Now(), Body: body})
}

// chainLimit is how many events of its chain the page of an event shows.
const chainLimit = 200

// chainOf returns the tree of the events in whose chain e is; none if it is alone in it.
func (p *Page) chainOf(r *http.Request, e *admin.EventDetail) (tree []node, more bool, err error) {
	life, err := p.ops.Life(r.Context(), admin.Filter{Correlation: e.Chain()}, admin.Page{Limit: chainLimit})
	if err != nil || len(life.Events) == 1 && len(life.Events[0].Caused) == 0 {
		return nil, false, err
	}
	return treeOf(life.Events, 0, e.ID), life.Next != "", nil
}

// match is what a text may name.
type match struct{ Kind, URL string }

type searchBody struct {
	Query   string
	Matches []match
	Types   []string // of entities, if the text may be one
	Key     string   // the URL of the search for a partition key
}

func (p *Page) showSearch(w http.ResponseWriter, r *http.Request) {
	body := searchBody{Query: strings.TrimSpace(r.URL.Query().Get("q"))}
	found, err := p.ops.Find(r.Context(), body.Query)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	for _, f := range found {
		body.Matches = append(body.Matches, p.matchOf(f))
	}
	o := p.overview.get(r.Context(), readLimit, 0).value
	for _, t := range o.Topics {
		if t.Name() == body.Query {
			body.Matches = append(body.Matches, match{"topic", p.view.path("topics", t.Namespace, t.Topic)})
		}
	}
	for _, l := range admin.SumShards(o.Listeners) {
		if l.Listener == body.Query {
			body.Matches = append(body.Matches, match{"listener", p.view.path("listeners", l.Listener)})
		}
	}
	if len(body.Matches) == 1 {
		http.Redirect(w, r, body.Matches[0].URL, http.StatusSeeOther)
		return
	}
	if body.Query != "" && len(body.Matches) == 0 {
		body.Key = p.view.path("events") + "?" + url.Values{"key": {body.Query}}.Encode()
		if strings.Contains(body.Query, "/") {
			if body.Types, err = p.ops.EntityTypes(r.Context()); err != nil {
				p.fail(w, r, err)
				return
			}
		}
	}
	p.show(w, r, http.StatusOK, frame{Name: "search", Title: "Search", Body: body})
}

// matchOf says what a filter of Find is, and where it is shown.
func (p *Page) matchOf(f admin.Filter) match {
	life := func(kind, value string) match {
		return match{strings.ReplaceAll(kind, "_", " "), p.view.path("life") + "?" + url.Values{kind: {value}}.Encode()}
	}
	switch {
	case f.IDs != nil:
		return match{"event", p.view.path("events", f.IDs[0].String())}
	case f.Entity.Type != "":
		return life("entity", f.Entity.Type+"/"+f.Entity.ID)
	case f.Key != "":
		return life("key", f.Key)
	case f.Correlation != "":
		return life("correlation", f.Correlation)
	}
	return match{"tenant", p.view.path("events") + "?" + url.Values{"tenant": {f.TenantID.UUID.String()}}.Encode()}
}
