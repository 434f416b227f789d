package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// freshFor is the age up to which viewers are shown the same reading.
	freshFor = 2 * time.Second
	// waitFor is how long a viewer waits for a newer one before seeing the latest.
	waitFor = 20 * time.Millisecond
	// firstWait is how long a viewer waits if there is none yet.
	firstWait = 5 * time.Second
)

func (p *Page) routes() *http.ServeMux {
	mux := http.NewServeMux()
	prefix := p.cfg.Prefix
	get := func(path string, h http.HandlerFunc) { mux.HandleFunc("GET "+prefix+path, h) }
	get("/{$}", p.showOverview)
	get("/topics/{namespace}/{topic}", p.showTopic)
	get("/events", p.showEvents)
	get("/events/{id}", p.showEvent)
	get("/life", p.showLife)
	get("/search", p.showSearch)
	get("/dead", p.showDead)
	get("/listeners", p.showListeners)
	get("/listeners/{name}", p.showListener)
	get("/consumers", p.showConsumers)
	get("/consumers/{name}", p.showConsumer)
	get("/consumers/{name}/{no}", p.showMessage)
	get("/limits", p.showLimits)
	get("/doctor", p.showDoctor)
	get("/audit", p.showAudit)
	get("/assets/{file}", p.serveAsset)
	if !p.cfg.ReadOnly {
		get("/acts/{act}", p.askAct)
		mux.HandleFunc("POST "+prefix+"/acts/{act}", p.doAct)
		get("/enqueue", p.showEnqueue)
		get("/enqueue/{namespace}/{topic}", p.askEnqueue)
		mux.HandleFunc("POST "+prefix+"/enqueue/{namespace}/{topic}", p.doEnqueue)
		get("/forget", p.forgets(p.showForget))
		mux.HandleFunc("POST "+prefix+"/forget", p.forgets(p.doForget))
	}
	mux.HandleFunc("POST "+prefix+"/doctor", p.runDoctor)
	if prefix != "" {
		mux.Handle("GET "+prefix, http.RedirectHandler(prefix+"/", http.StatusMovedPermanently))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		status, hint := http.StatusNotFound, "The menu leads to all pages."
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			status, hint = http.StatusMethodNotAllowed, "Nothing was changed."
			if p.cfg.ReadOnly {
				hint = "This page is read-only. Nothing was changed."
			}
		}
		p.show(w, r, status, frame{
			Name: "problem", Title: http.StatusText(status),
			Body: problem{"There is nothing to " + strings.ToLower(r.Method) + " at this address.", hint},
		})
	})
	return mux
}

// doneFields are the parameters with which an address says what an act has done.
var doneFields = []string{"did", "n", "of", "refused", "because", "others"}

// doneText says what an act has done, from the parameters of a redirect.
func (p *Page) doneText(query url.Values) string {
	switch query.Get("did") {
	case "enqueue":
		return "Enqueued."
	case "enqueue-duplicate":
		return "This event has the dedupe key already: nothing was written."
	case "forget":
		return forgotText(resultOf(query))
	case "forget-runs":
		return "It takes longer, and goes on by itself. The audit counts the rows that are deleted, and says when it has ended."
	}
	for _, a := range p.acts {
		if a.name == query.Get("did") {
			return a.done(resultOf(query))
		}
	}
	return ""
}
