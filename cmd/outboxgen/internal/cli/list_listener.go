package cli

import (
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
)

// listenerRow is a listener in the output of list.
type listenerRow struct {
	Listener     string    `json:"listener"`
	Topics       []string  `json:"topics"`
	Publish      bool      `json:"publish,omitempty"`
	Mode         string    `json:"mode"`
	Start        string    `json:"start"`
	OnFailure    string    `json:"on_failure"`
	Concurrency  int       `json:"concurrency"`
	Shards       int       `json:"shards"`
	Batch        *batchRow `json:"batch,omitempty"`
	Rate         string    `json:"rate,omitempty"`
	Lease        string    `json:"lease"`
	MaxLag       string    `json:"max_lag,omitempty"`
	Retry        *retryRow `json:"retry"`
	RetryHorizon string    `json:"retry_horizon"`
	Doc          string    `json:"doc,omitempty"`
}

func newListenerRow(l *model.Listener) listenerRow {
	row := listenerRow{
		Listener:     l.Name,
		Publish:      l.Publish,
		Mode:         "leased",
		Start:        "earliest",
		OnFailure:    "block",
		Concurrency:  l.Concurrency,
		Shards:       l.Shards,
		Batch:        newBatchRow(l.Batch),
		Rate:         l.Rate.String(),
		Lease:        span(l.Lease),
		Retry:        newRetryRow(l.Retry),
		RetryHorizon: span(l.Retry.Horizon()),
		Doc:          l.Doc,
	}
	for _, t := range l.Topics {
		row.Topics = append(row.Topics, t.FullName())
	}
	if l.Transactional {
		row.Mode = "transactional"
	}
	if l.Latest {
		row.Start = "latest"
	}
	if l.ParkKeys {
		row.OnFailure = "park_key"
	}
	if l.MaxLag > 0 {
		row.MaxLag = span(l.MaxLag)
	}
	return row
}

func listenerTable(listeners []*model.Listener) [][]any {
	table := [][]any{
		{"LISTENER", "MODE", "START", "ON FAILURE", "CONCURRENCY", "SHARDS", "ATTEMPTS", "RETRY HORIZON", "LEASE", "MAX LAG",
			"PUBLISHES", "TOPICS"},
	}
	for _, l := range listeners {
		r := newListenerRow(l)
		publishes := "no"
		if l.Publish {
			publishes = "yes"
		}
		table = append(table, []any{r.Listener, r.Mode, r.Start, r.OnFailure, r.Concurrency, r.Shards,
			r.Retry.MaxAttempts, r.RetryHorizon, r.Lease, dash(r.MaxLag), publishes, strings.Join(r.Topics, ",")})
	}
	return table
}
