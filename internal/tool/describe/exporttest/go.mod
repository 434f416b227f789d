module github.com/outboxgen/outboxgen/internal/tool/describe/exporttest

go 1.26.0

replace github.com/outboxgen/outboxgen => ../../../..

require (
	github.com/goccy/go-yaml v1.19.2
	github.com/outboxgen/outboxgen v0.0.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	github.com/stretchr/testify v1.12.1
	gopkg.in/yaml.v3 v3.0.1
	pgregory.net/rapid v1.3.0
)

require (
	github.com/dave/jennifer v1.7.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.43.0 // indirect
)
