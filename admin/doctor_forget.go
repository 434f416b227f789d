package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// checkForget: what somebody began to forget is forgotten.
func checkForget(ctx context.Context, e *examination) (found []Finding, err error) {
	var rows []queries.ForgetBrokenRow
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		rows, err = q.ForgetBroken(ctx)
		return err
	})
	for _, r := range rows {
		var s auditScope
		if r.Running || json.Unmarshal(r.Scope, &s) != nil {
			continue
		}
		scope := s.forgetScope()
		command := "forget"
		if scope.EntityType != "" {
			command += " --entity " + errtext.Word(scope.EntityType+"/"+scope.EntityID)
		}
		if scope.TenantID.Valid {
			command += " --tenant " + scope.TenantID.UUID.String()
		}
		if scope.AnyTenant {
			command += " --any-tenant"
		}
		if scope.Undelivered {
			command += " --undelivered"
		}
		if scope.Processed {
			command += " --processed"
		}
		found = append(found, Finding{
			Severity: SeverityWarning,
			Text: fmt.Sprintf("%s began to forget %s at %s and did not finish", brief(r.Who), scope,
				r.At.Time.UTC().Format(time.RFC3339)),
			Means: "a part of its events and of what belongs to them is still there, and the audit still names it",
			Fix:   e.command(command + " --yes"),
		})
	}
	return found, err
}
