// Package operator is the interface for operators: JSON over HTTP about the tasks, replicas and upstreams of
// the deployment, and the console page that shows them. docs/operator.md describes it, and openapi.json has
// each path and field.
//
// It checks who asks, spells answers, and gets their content from a [Source]. Every replica gives the same
// answers, since all of them come from shared data.
package operator
