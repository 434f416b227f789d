package driver

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// TestCampaignFindsMissingGuards: if claims lack a guard, what handlers saw shows it, even if nothing else goes wrong.
func TestCampaignFindsMissingGuards(t *testing.T) {
	t.Parallel()
	for name, guard := range map[string]struct {
		edits [][2]string // of the function claim_turns
		found []string    // parts of violations
	}{
		"leases": {
			edits: [][2]string{
				{"AND p.locked_until < statement_timestamp()", ""},
				{"THEN q.locked_until < statement_timestamp()", "THEN true"},
			},
			found: []string{check.Overlap + ": "},
		},
		"limits": {
			edits: [][2]string{
				{"AND l.there AND k.max - l.n > p_batch_size", "AND l.there"},
				{"AND (f.late OR f.added <= coalesce(k_room[f.k], f.added))", ""},
				{"AND f.place <= coalesce(k_starts[f.k], f.place)", ""},
				{"WHERE t.at >= now_at - k.period", "WHERE t.at >= now_at - k.period / 50"},
			},
			found: []string{"handled already, and the limit is 3", "and the limit is 40"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var account *Account
			require.NoError(t, Config{Seed: 1, Events: 1200, Rate: 200, Progress: t.Output()}.run(t.Context(), true, func(d *driver) error {
				var text string
				if err := d.root.QueryRow(t.Context(), "SELECT pg_get_functiondef('outbox.claim_turns'::regproc)").Scan(&text); err != nil {
					return err
				}
				for _, edit := range guard.edits {
					require.Contains(t, text, edit[0])
					text = strings.ReplaceAll(text, edit[0], edit[1])
				}
				if err := d.exec(t.Context(), text); err != nil {
					return err
				}
				for _, s := range d.slots[shop.Writer] {
					if err := s.tell(shop.TellBurst); err != nil {
						return err
					}
				}
				err := d.write(t.Context())
				if err == nil {
					account, err = d.judge(t.Context(), check.Rules{Calm: true})
				}
				return err
			}))
			var kinds []string
			for _, v := range account.Violations {
				kinds = append(kinds, v.Kind)
			}
			slices.Sort(kinds)
			t.Log(len(kinds), "violations:", slices.Compact(kinds))
			for _, part := range guard.found {
				require.True(t, slices.ContainsFunc(account.Violations, func(v check.Violation) bool { return strings.Contains(v.String(), part) }),
					"no violation has %q\n%s", part, account)
			}
		})
	}
}
