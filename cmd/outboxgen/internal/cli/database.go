package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/tool/redact"
)

// connectTimeout applies when the connection string has no connect_timeout.
const connectTimeout = 10 * time.Second

// database says which database and schema a command works on.
type database struct {
	url    string
	schema string
	config string
	set    *pflag.FlagSet // has --config
}

func (d *database) flags(c *cobra.Command) {
	c.PersistentFlags().StringVar(&d.url, "database-url", "",
		"`URL` or key=value string of the database (default: DATABASE_URL, else the PG* variables)")
	d.schemaFlags(c)
}

func (d *database) schemaFlags(c *cobra.Command) {
	c.PersistentFlags().StringVar(&d.schema, "schema", "",
		"`schema` of the tables (default: the schema of outbox.yaml if that file exists, else outbox)")
	d.set = c.PersistentFlags()
	d.set.StringVar(&d.config, "config", defaultConfig, "the YAML `file` that names the schema")
	_ = c.MarkPersistentFlagFilename("config", "yaml", "yml") // fails only for an undefined flag
}

// schemaName returns the schema from the first of these that is present: --schema, the file of --config, an outbox.yaml
// in the current folder, the default.
func (d *database) schemaName(a *app) (string, error) {
	if d.schema != "" {
		if err := pgname.Check(d.schema); err != nil {
			return "", usage(fmt.Errorf("--schema: %w", err))
		}
		return d.schema, nil
	}
	if !d.hasConfig() {
		return "outbox", nil
	}
	m, err := d.model(a)
	if err != nil {
		return "", err
	}
	return m.Schema, nil
}

// hasConfig reports whether --config names a file, or there is one where it looks without that flag.
func (d *database) hasConfig() bool { return d.set.Changed("config") || isFile(d.config) }

// model reads the YAML.
func (d *database) model(a *app) (*model.Model, error) {
	return (&source{path: d.config, format: string(diag.Text)}).model(a)
}

// modelAndSchema returns the model of the YAML, nil if there is no such file or if it is of another schema, and the
// schema.
func (d *database) modelAndSchema(a *app) (m *model.Model, schema string, err error) {
	if d.hasConfig() {
		if m, err = d.model(a); err != nil {
			return nil, "", err
		}
		schema = m.Schema
	}
	if d.schema != "" || m == nil {
		schema, err = d.schemaName(a)
	}
	if m != nil && m.Schema != schema {
		m = nil
	}
	return m, schema, err
}

// connect opens a connection. The caller closes it.
func (d *database) connect(ctx context.Context, a *app) (*pgx.Conn, error) {
	dsn, from := d.dsn(a)
	cfg, err := pgx.ParseConfig(dsn)
	if err := checkDSN(dsn, from, err); err != nil {
		return nil, err
	}
	a.tune(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, connectProblem(cfg, dsn, from, err)
	}
	return conn, nil
}

// pool opens a pool and checks that it can connect. The caller closes it.
func (d *database) pool(ctx context.Context, a *app) (*pgxpool.Pool, error) {
	dsn, from := d.dsn(a)
	return a.openPool(ctx, dsn, from)
}

// openPool opens a pool on dsn and checks that it can connect. Messages say that dsn is that of from. The caller closes
// the pool.
func (a *app) openPool(ctx context.Context, dsn, from string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err := checkDSN(dsn, from, err); err != nil {
		return nil, err
	}
	a.tune(cfg.ConnConfig)
	cfg.MinConns, cfg.MinIdleConns, cfg.MaxConns = 0, 0, poolSize
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, connectProblem(cfg.ConnConfig, dsn, from, err)
	}
	return pool, nil
}

// poolSize is the most connections that a command uses concurrently.
const poolSize = 4

// dsn returns the connection string and its source.
func (d *database) dsn(a *app) (dsn, from string) {
	if d.url != "" {
		return d.url, "--database-url"
	}
	if dsn = a.Getenv("DATABASE_URL"); dsn != "" {
		return dsn, "DATABASE_URL"
	}
	return "", "PG* variables"
}

// tune sets our defaults for what the connection string does not set.
func (a *app) tune(cfg *pgx.ConnConfig) {
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, connectTimeout)
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { a.notef("%s: %s", n.Severity, n.Message) }
	cfg.RuntimeParams["application_name"] = cmp.Or(cfg.RuntimeParams["application_name"], "outboxgen")
}

// checkDSN returns what is wrong with a connection string, given the error with which pgx parsed it. It also refuses an
// ambiguous string: pgx may take a part of the password for something else, and messages would then show it.
func checkDSN(dsn, from string, err error) error {
	switch ambiguous := redact.CheckURL(dsn); {
	case ambiguous != nil:
		return usage(fmt.Errorf("%s: %w", from, ambiguous))
	case !strings.Contains(dsn, "://") && strings.Contains(dsn, "=") && oddSetting(dsn):
		return usage(fmt.Errorf(
			"%s: bad connection string: quote a value that contains a space or a quote, as in password='two words'", from))
	case err != nil:
		return usage(fmt.Errorf("%s: %s", from, parseProblem(err)))
	}
	return nil
}

// oddSetting reports whether the key=value string dsn has a key that contains a space, which happens when a password
// with a space is not quoted.
func oddSetting(dsn string) bool {
	rest := dsn
	for {
		key, value, ok := strings.Cut(rest, "=")
		if !ok {
			return strings.TrimSpace(rest) != ""
		}
		if key = strings.TrimSpace(key); strings.ContainsFunc(key, func(r rune) bool {
			return r != '_' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}) {
			return true
		}
		rest = afterValue(strings.TrimLeft(value, " \t\n\r"))
	}
}

// afterValue returns what follows the value, quoted or not, at the start of text.
func afterValue(text string) string {
	quoted := strings.HasPrefix(text, "'")
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case quoted && c == '\'' && i > 0:
			return text[i+1:]
		case !quoted && strings.IndexByte(" \t\n\r", c) >= 0:
			return text[i+1:]
		}
	}
	return ""
}

// connectProblem returns err with the database and the user that were tried, and without the password: pgx never shows
// it, but the answer of a server or resolver might repeat it.
func connectProblem(cfg *pgx.ConnConfig, dsn, from string, err error) error {
	text := err.Error()
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		text = connectErr.Unwrap().Error()
	}
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == undefinedObject {
		text = "the server does not know a setting of the connection string; quote a password that contains a space"
	}
	text = redact.Mask(redact.MaskIn(oneLine(withoutTLS(text)), dsn))
	if !slices.Contains([]string{cfg.User, cfg.Database, cfg.Host}, cfg.Password) {
		text = redact.MaskQuoted(text, cfg.Password)
	}
	return fmt.Errorf("connect to database %q as user %q (%s): %s", schemadb.DatabaseName(cfg), cfg.User, from, text)
}

// withoutTLS removes the lines that say that the server has no TLS, if there are others: pgx then went on without it,
// as sslmode=prefer says, and the others say why that failed.
func withoutTLS(text string) string {
	var others []string
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(strings.TrimSpace(line), "tls error: server refused TLS connection") &&
			strings.TrimSpace(line) != "" {
			others = append(others, line)
		}
	}
	if len(others) == 0 {
		return text
	}
	return strings.Join(others, "")
}

// undefinedObject is the code of the server's error for an unknown setting. Its message names the setting, which may be
// the second half of an unquoted password with a space.
const undefinedObject = "42704"

// parseProblem says what is wrong with a connection string. If the string cannot be split into its parts, the cause is
// left out, because it may quote any piece of the string, including the password.
func parseProblem(err error) string {
	const hint = "use postgres://host:port/database with user:password@ before the host, or key=value pairs"
	text := err.Error()
	i := strings.LastIndex(text, "`: ") // "cannot parse `...`: what (cause)"
	if i < 0 || strings.Contains(text[i:], "failed to parse as") {
		return "not a connection string: " + hint
	}
	return "bad connection string: " + strings.TrimPrefix(oneLine(text[i+len("`: "):]), "failed to ")
}
