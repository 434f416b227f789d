package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
)

func (a *app) exportJSONSchema() *cobra.Command {
	var src source
	var out output
	var topic, base string
	c := &cobra.Command{
		Use:   "jsonschema",
		Short: "Print the JSON Schemas of published payloads",
		Long: `jsonschema prints JSON Schemas (2020-12) of the payloads of all topics with publish, including the
versions that outbox.lock.yaml holds. Without flags it prints one document with all of them. With --output it writes a
file per version, such as users.user_created.v1.schema.json, and replaces those that are there. With --topic it prints
the schema of the topic's present version. docs/run/exporting.md says what a schema covers.`,
		Example: `  outboxgen export jsonschema --output schemas --base-url https://schemas.example.com/events/
  outboxgen export jsonschema --topic users/user_created > user_created.schema.json`,
		Args: cobra.NoArgs,
	}
	c.RunE = run(func(context.Context, []string) error {
		if topic != "" && out.dir != "" {
			return usage(errors.New("--topic: prints one schema on stdout: remove --output"))
		}
		base, err := describe.BaseURL(base)
		if err != nil {
			return usage(fmt.Errorf("--base-url: %w", err))
		}
		kinds, _, err := a.published(&src)
		if err != nil {
			return err
		}
		if topic != "" {
			at := slices.IndexFunc(kinds, func(k describe.Kind) bool {
				return k.Topic.FullName() == topic && k.Version == k.Topic.Version
			})
			if at < 0 {
				var names []string
				for _, k := range kinds {
					names = append(names, k.Topic.FullName())
				}
				return usage(fmt.Errorf("--topic: no topic with publish is called %q in %s%s", topic, a.shown(src.path),
					diag.NewReporter("").DidYouMean(topic, names)))
			}
			kinds = kinds[at : at+1]
		}
		var files []describe.File
		add := func(name string, content []byte, err error) error {
			files = append(files, describe.File{Name: name, Content: content})
			return err
		}
		if topic == "" && out.dir == "" {
			content, err := describe.JSONSchemas(kinds, base)
			if err := add("events.schema.json", content, err); err != nil {
				return err
			}
		} else {
			for _, k := range kinds {
				content, err := describe.JSONSchema(k, base)
				if err := add(describe.SchemaName(k), content, err); err != nil {
					return err
				}
			}
		}
		return out.write(a, files)
	})
	src.flags(c)
	out.flag(c)
	c.Flags().StringVar(&topic, "topic", "", "only this topic, as `namespace/topic`")
	c.Flags().StringVar(&base, "base-url", "", "`URL` in front of the names of files in $id")
	return c
}

func (a *app) exportAsyncAPI() *cobra.Command {
	var src source
	var out output
	var cfg describe.AsyncAPIConfig
	var encoding string
	c := &cobra.Command{
		Use:   "asyncapi",
		Short: "Print an AsyncAPI document of published topics",
		Long: `asyncapi prints an AsyncAPI 3.0 document of all topics with publish: a channel per destination, an
operation per topic, and a message per version of a payload, with its headers and its key. --encoding says which Encoder
the publishers have. The addresses of brokers are not in the YAML: add servers to the document if you need them.`,
		Example: `  outboxgen export asyncapi > asyncapi.json
  outboxgen export asyncapi --encoding json --title "Accounts" --api-version 2.1.0 --output docs`,
		Args: cobra.NoArgs,
	}
	c.RunE = run(func(context.Context, []string) error {
		cfg.Encoding = describe.Encoding(encoding)
		switch {
		case !slices.Contains(describe.Encodings(), cfg.Encoding):
			return usage(fmt.Errorf("--encoding: %q is not an encoding: use %s", encoding,
				strings.Join(words(describe.Encodings()), ", ")))
		case cfg.Source != "" && cfg.Encoding == describe.JSON:
			return usage(errors.New("--source: only CloudEvents have a source: remove it, or use another --encoding"))
		}
		_, m, err := a.published(&src)
		if err != nil {
			return err
		}
		content, err := describe.AsyncAPI(m, cfg)
		if err != nil {
			return err
		}
		return out.write(a, []describe.File{{Name: "asyncapi.json", Content: content}})
	})
	src.flags(c)
	out.flag(c)
	c.Flags().StringVar(&encoding, "encoding", string(describe.Binary),
		"`encoder` of the publishers: "+strings.Join(words(describe.Encodings()), ", "))
	_ = c.RegisterFlagCompletionFunc("encoding",
		cobra.FixedCompletions(words(describe.Encodings()), cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&cfg.Source, "source", "", "`source` of the CloudEvents; default: a slash and the namespace")
	c.Flags().StringVar(&cfg.Title, "title", "", "`title` of the document; default: made from the package")
	c.Flags().StringVar(&cfg.Version, "api-version", "1.0.0", "`version` of the document")
	return c
}

// published reads the YAML and its lock, and returns the payloads of its published topics. Without any it returns an
// error.
func (a *app) published(src *source) ([]describe.Kind, *model.Model, error) {
	m, err := src.frozenModel(a)
	if err != nil {
		return nil, nil, err
	}
	kinds := describe.Kinds(m)
	if len(kinds) == 0 {
		return nil, nil, &failure{
			exitFindings, fmt.Errorf("no topic in %s has a publish, so there are no messages to describe", a.shown(src.path)),
		}
	}
	return kinds, m, nil
}

func (a *app) exportDebezium() *cobra.Command {
	var src source
	var out output
	var cfg describe.DebeziumConfig
	var sql, cleanup bool
	c := &cobra.Command{
		Use:   "debezium",
		Short: "Print the configuration of Debezium for published topics",
		Long: `debezium prints the configuration of a Debezium connector for PostgreSQL (2.6 or newer) that publishes
the log topics with publish: {kafka: ...} in place of our listeners, with Debezium's outbox event router.
consume.FromKafka reads its records. --sql prints the SQL to run before the connector starts: the role, the publication
and the slot. With --output both are written. stderr says what differs from our publishers. docs/run/exporting.md has
the steps.

With --queue-topics it captures queue topics too. No dispatcher may deliver these, and their rows must be deleted by
the SQL that --cleanup prints.`,
		Example: `  outboxgen export debezium --sql | psql -v ON_ERROR_STOP=1
  outboxgen export debezium > connector.json
  curl --json @connector.json http://localhost:8083/connectors`,
		Args: cobra.NoArgs,
	}
	c.RunE = run(func(context.Context, []string) error {
		if sql && cleanup || (sql || cleanup) && out.dir != "" {
			return usage(errors.New("--sql, --cleanup and --output: use one of them"))
		}
		m, err := src.model(a)
		if err != nil {
			return err
		}
		cfg.File = a.shown(src.path)
		d, err := describe.ExportDebezium(m, cfg)
		switch {
		case err != nil && strings.HasPrefix(err.Error(), "--"):
			return usage(err)
		case err != nil:
			return &failure{exitFindings, err}
		case cleanup && d.Cleanup == nil:
			return usage(errors.New("--cleanup: only queue topics need it: add --queue-topics"))
		}
		for _, note := range d.Notes {
			a.notef("%s", note)
		}
		files := []describe.File{{Name: "connector.json", Content: d.Connector}, {Name: "setup.sql", Content: d.Setup}}
		if d.Cleanup != nil {
			files = append(files, describe.File{Name: "cleanup.sql", Content: d.Cleanup})
		}
		switch {
		case sql:
			files = files[1:2]
		case cleanup:
			files = files[2:]
		case out.dir == "" && !a.json:
			files = files[:1]
		}
		if a.json && out.dir == "" {
			return a.printJSON(struct {
				Topics      []string  `json:"topics"`
				KafkaTopics []string  `json:"kafka_topics"`
				Notes       []string  `json:"notes"`
				Files       []fileRow `json:"files"`
			}{d.Topics, d.Kafka, append([]string{}, d.Notes...), fileRows(files)})
		}
		a.notef("Kafka needs these topics: %s", strings.Join(d.Kafka, ", "))
		return out.write(a, files)
	})
	src.flags(c)
	out.flag(c)
	c.Flags().BoolVar(&sql, "sql", false, "print the SQL to run before the connector starts")
	c.Flags().BoolVar(&cleanup, "cleanup", false, "print the SQL that deletes published events of queue topics")
	c.Flags().BoolVar(&cfg.Queue, "queue-topics", false, "capture queue topics too")
	c.Flags().StringVar(&cfg.Namespace, "namespace", "",
		"only the topics of this `namespace`, in a connector of its own (PostgreSQL 15 or newer)")
	c.Flags().StringVar(&cfg.Name, "name", "", "`name` of the slot and the publication; default: the schema and _debezium")
	c.Flags().StringVar(&cfg.Source, "source", "",
		"`source` of the CloudEvents that the publishers sent, so that an inbox knows their events")
	c.Flags().StringVar(&cfg.Role, "role", "debezium", "`role` that Debezium connects as")
	return c
}

// output is where files go: to stdout, or with --output to a folder.
type output struct {
	dir   string
	check bool
}

func (o *output) flag(c *cobra.Command) {
	c.Flags().StringVar(&o.dir, "output", "", "`folder` to write to, instead of stdout")
	_ = c.MarkFlagDirname("output") // fails only for an undefined flag
	c.Flags().BoolVar(&o.check, "check", false, "with --output: write nothing; exit with 1 if a file would change")
}

// write prints the one file, or writes all files to the folder, where it replaces those that are different.
func (o *output) write(a *app, files []describe.File) (err error) {
	switch {
	case o.dir == "" && o.check:
		return usage(errors.New("--check: compares files in a folder: add --output"))
	case o.dir == "" && a.json:
		return a.printFiles(fileRows(files))
	case o.dir == "":
		return a.printf("%s", files[0].Content)
	}
	var wanted []generator.File
	for _, f := range files {
		wanted = append(wanted, generator.File{Name: f.Name, Content: f.Content})
	}
	changes, err := generator.PlanFiles(o.dir, wanted)
	if err != nil {
		return usage(err)
	}
	pending := len(changes.Pending())
	if !o.check && pending > 0 {
		made, err := makeFolder(o.dir)
		if err != nil {
			return fmt.Errorf("make folder %s: %w", o.dir, pathCause(err))
		}
		err = changes.Write()
		made.removeIf(err != nil)
		if err != nil {
			return err
		}
	}
	err = a.printChanges(changes)
	if err == nil && o.check && pending > 0 {
		a.notef("%s: out of date: run the command without --check, with the same flags", o.dir)
		return errReported
	}
	return err
}
