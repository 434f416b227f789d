module github.com/outboxgen/outboxgen/examples/contacts

go 1.26

tool github.com/outboxgen/outboxgen/cmd/outboxgen

require (
	github.com/google/uuid v1.6.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/outboxgen/outboxgen v0.0.0
	github.com/stretchr/testify v1.12.1
)

replace github.com/outboxgen/outboxgen => ../..
