package promtest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/tool/alerts"
)

// configs are the ways in which the command export calls package monitor.
var configs = map[string]alerts.Config{
	"generic": {},
	"yaml": {
		Name: "events", MaxLag: 10 * time.Minute, Selector: `job="orders",region!="x"`, Runbook: "https://wiki.example.com/it's",
		Topics:    map[string]time.Duration{"shop/placed": time.Minute, "shop/viewed": 0, "shop/paid": time.Minute, "shop/sent": 1500 * time.Millisecond},
		Listeners: map[string]time.Duration{"ears": 90 * time.Minute, "eyes": 0},
	},
}

// rules parses the alerts for c as Prometheus does.
func rules(t testing.TB, c alerts.Config) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse(alerts.Rules(c), false, model.LegacyValidation, parser.NewParser(parser.Options{}), nil)
	require.Empty(t, errs)
	require.Len(t, groups.Groups, 1)
	return groups.Groups[0].Rules
}

// queries returns the queries of the dashboard for c, by panel.
func queries(t testing.TB, c alerts.Config) map[string][]string {
	t.Helper()
	text, err := alerts.Dashboard(c)
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &d))
	all := make(map[string][]string)
	for _, p := range d.Panels {
		require.NotContains(t, all, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], target.Expr)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// metrics returns the names of the metrics in a query, which it parses.
func metrics(t testing.TB, query string) (names []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	require.NoError(t, err, query)
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	require.NotEmpty(t, names, query)
	return names
}
