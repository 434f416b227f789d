package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/alerts"
)

func (a *app) exportCommand() *cobra.Command {
	return group("export", "Print what other tools need: schemas, connectors, alerts",
		`export prints files for other tools. asyncapi, jsonschema and debezium are about published events:
docs/run/exporting.md. prometheus-rules and grafana monitor an outbox whose processes export the metrics of module
telemetry/prometheus: docs/operate/telemetry.md has the set-up and lists the metrics.`,
		a.exportAsyncAPI(),
		a.exportJSONSchema(),
		a.exportDebezium(),
		a.exportMonitor("prometheus-rules", "Print alerting rules for Prometheus", "outbox.rules.yml",
			`prometheus-rules prints a rule file. Each alert links to its entry in docs/operate/runbook.md, which says
what to look at and what to do. The bound of the age of the oldest event is max_lag in the YAML, or --max-lag for topics
and listeners without it. Events of topics that the YAML does not name are watched too. With --generic no
YAML is read. Check the file with promtool check rules.`,
			`  outboxgen export prometheus-rules > outbox.rules.yml
  outboxgen export prometheus-rules --generic --max-lag 10m --selector 'job="orders"'`,
			func(c alerts.Config) ([]byte, error) { return alerts.Rules(c), nil }),
		a.exportMonitor("grafana", "Print a dashboard for Grafana", "outbox.dashboard.json",
			`grafana prints a dashboard as JSON, to import in Grafana. Its variables offer the topics and listeners of the YAML.
With --generic no YAML is read, and they offer those that the metrics have.`,
			`  outboxgen export grafana > outbox.dashboard.json
  outboxgen export grafana --generic --selector 'job="orders"'`,
			alerts.Dashboard),
	)
}

func (a *app) exportMonitor(
	use, short, file, long, example string, print func(alerts.Config) ([]byte, error),
) *cobra.Command {
	var src source
	var cfg alerts.Config
	var generic bool
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: cobra.NoArgs}
	c.RunE = run(func(context.Context, []string) error {
		switch {
		case cfg.MaxLag < time.Second:
			return usage(fmt.Errorf("--max-lag: %s is shorter than 1s", cfg.MaxLag))
		case strings.ContainsAny(cfg.Selector, "{}\n"):
			return usage(errors.New(`--selector: write matchers without braces, such as job="orders"`))
		case generic && c.Flags().Changed("config"):
			return usage(errors.New("--generic: reads no YAML: remove --config"))
		}
		if !generic {
			m, err := src.model(a)
			if err != nil {
				return err
			}
			monitored(&cfg, m)
		}
		text, err := print(cfg)
		if err != nil {
			return err
		}
		if a.json {
			return a.printFiles([]fileRow{{file, string(text)}})
		}
		return a.printf("%s", text)
	})
	src.flags(c)
	c.Flags().BoolVar(&generic, "generic", false, "read no YAML")
	c.Flags().DurationVar(&cfg.MaxLag, "max-lag", 5*time.Minute,
		"`age` of the oldest event that raises an alarm, of topics and listeners without max_lag")
	c.Flags().StringVar(&cfg.Selector, "selector", "", "`matchers` that every metric gets, such as job=\"orders\"")
	if use == "prometheus-rules" {
		c.Flags().StringVar(&cfg.Runbook, "runbook", "",
			"`URL` of your copy of docs/operate/runbook.md; default: that of the repository")
	}
	return c
}

// monitored adds to cfg what the YAML says.
func monitored(cfg *alerts.Config, m *model.Model) {
	cfg.Name, cfg.Topics, cfg.Listeners = m.Package, make(map[string]time.Duration), make(map[string]time.Duration)
	for _, n := range m.Namespaces {
		for _, t := range n.QueueTopics() {
			cfg.Topics[t.FullName()] = t.MaxLag
		}
	}
	for _, l := range m.Listeners {
		cfg.Listeners[l.Name] = l.MaxLag
	}
}
