package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/seal"
)

// keyFlags say where the keys are.
type keyFlags struct {
	path, env string
}

func (f *keyFlags) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.path, "keys", "", "`file` with the keys, or folder with a file per tenant")
	c.Flags().StringVar(&f.env, "keys-env", "", "environment `variable` with the keys, in place of --keys")
	_ = c.MarkFlagFilename("keys") // fails only for an undefined flag
}

// keyring reads the keys. It returns nil if no flag is given.
func (f *keyFlags) keyring(getenv func(string) string) (seal.Keyring, error) {
	var k seal.Keyring
	var err error
	switch {
	case f.path != "" && f.env != "":
		err = errors.New("--keys and --keys-env: use one of them")
	case f.env != "":
		if k, err = seal.Parse(getenv(f.env)); err != nil {
			err = fmt.Errorf("--keys-env %s: %w", f.env, err)
		}
	case f.path != "":
		if info, failed := os.Stat(f.path); failed == nil && info.IsDir() {
			k, err = seal.FromDir(f.path)
		} else {
			k, err = seal.FromFile(f.path)
		}
		if err != nil {
			err = fmt.Errorf("--keys: %w", err)
		}
	}
	if err != nil {
		return nil, usage(err)
	}
	return k, nil
}

// checkKey reports a key that the keyring does not have. One with a file per tenant may have it for some.
func checkKey(ctx context.Context, k seal.Keyring, id string) error {
	named, ok := k.(interface{ IDs() []string })
	if id == "" || !ok {
		return nil
	}
	if _, err := k.OpeningKey(ctx, uuid.NullUUID{}, id); err != nil {
		return usage(fmt.Errorf("--to %s: %w: use one of %s, or add it to the keys", id, err,
			cmp.Or(strings.Join(named.IDs(), ", "), "none")))
	}
	return nil
}

func (a *app) resealCommand() *cobra.Command {
	var db database
	var keys keyFlags
	var person personFlags
	var to string
	var yes bool
	c := &cobra.Command{
		Use:   "reseal",
		Short: "Seal stored values again, with another key",
		Long: `reseal seals with another key what is stored: the sealed values in events, the log, dead letters, parked
events, and the messages that consumers have parked, given up or quarantined. It recognizes the values by their form,
so it needs no outbox.yaml. Afterwards an old key is needed only for what brokers and backups keep.

Without --yes it counts the values by table and key, and needs no keys. It works in pieces, each of which is one
transaction, while dispatchers, listeners and consumers run: give them both keys first. If it is stopped, run it again.
Run it again, too, for what was enqueued with the old key meanwhile. It needs the role outbox_operator of
outboxgen migrate get --roles.

VALUES   how many values the key has sealed
CHANGED  how many of them are sealed with the new key now
REFUSED  how many are not, with the reason below the table: they stay as they are

If values are refused, the exit code is 1.`,
		Example: `  outboxgen reseal
  outboxgen reseal --keys /run/secrets/outbox.keys --to k2
  outboxgen reseal --keys /run/secrets/outbox.keys --to k2 --yes`,
		Args: cobra.NoArgs,
	}
	c.RunE = a.administer(&db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		k, err := keys.keyring(a.Getenv)
		switch {
		case err != nil:
			return err
		case k == nil && (yes || to != ""):
			return usage(errors.New("say where the keys are: use --keys with a file or a folder, or --keys-env"))
		case k != nil:
			if err := checkKey(ctx, k, to); err != nil {
				return err
			}
		}
		r, err := person.as(ops).Reseal(ctx, k, to, admin.Act{DryRun: !yes})
		if len(r.Rows) > 0 || err == nil {
			err = cmp.Or(err, a.printReseal(r, to, yes))
		}
		return err
	})
	db.flags(c)
	keys.flags(c)
	c.Flags().StringVar(&to, "to", "", "`id` of the key to seal with (default: the first of the keys)")
	c.Flags().BoolVar(&yes, "yes", false, "apply the change")
	person.flags(c)
	return c
}

func (a *app) printReseal(r admin.ResealReport, to string, yes bool) error {
	table := [][]any{{"TABLE", "KEY", "VALUES", "CHANGED", "REFUSED"}}
	reasons := make(map[string]int64)
	old := int64(0)
	for _, row := range r.Rows {
		refused := int64(0)
		for reason, n := range row.Refused {
			refused += n
			reasons[reason] += n
		}
		if row.Key != to {
			old += row.Values - row.Changed
		}
		table = append(table, []any{row.Table, row.Key, row.Values, row.Changed, refused})
	}
	if err := a.printList(struct {
		doneRow
		admin.ResealReport
	}{doneRow{yes}, r}, table, "nothing is sealed"); err != nil {
		return err
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		a.notef("%s not sealed again: %s", count(int(reasons[reason]), "value"), reason)
	}
	switch {
	case len(reasons) > 0:
		return errReported
	case !yes && old > 0:
		a.notef("dry run: nothing was changed; add --keys, --to and --yes to seal what has another key")
	}
	return nil
}
