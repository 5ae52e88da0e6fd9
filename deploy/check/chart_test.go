package check

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"taskgate/gateway/config"
)

const chartDir = "../chart"

// values are those of a deployment: three replicas with a Redis, and a server with a secret.
const values = `
image: {repository: registry.example.com/taskgate}
replicas: 3
config:
  drain_timeout: 20s
  upstreams:
    - {name: mcp, path: /mcp, url: "http://mcp-server:3001/mcp", headers: {Authorization: "Bearer ${TOKEN}"}}
redis: {secret: taskgate}
env:
  - {name: TOKEN, valueFrom: {secretKeyRef: {name: mcp-server, key: token}}}
volumes: [{name: secrets, secret: {secretName: taskgate-files}}]
volumeMounts: [{name: secrets, mountPath: /etc/secrets, readOnly: true}]
serviceMonitor: {enabled: true}
`

// render is what "helm template" prints, by file.
func render(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "gate", Namespace: "tools", IsInstall: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(chart, all)
	maps.DeleteFunc(files, func(_, text string) bool { return strings.TrimSpace(text) == "" })
	return files, err
}

// TestChartLint: helm has nothing against the chart but that it has no picture.
func TestChartLint(t *testing.T) {
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	linter := lint.All(chartDir, given, "tools", true)
	for _, m := range linter.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestChart renders the chart and reads it as a cluster would, and the gateway its configuration.
func TestChart(t *testing.T) {
	files, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	var deployment apps.Deployment
	var configMap core.ConfigMap
	var budget policy.PodDisruptionBudget
	read(t, files, "deployment.yaml", &deployment)
	read(t, files, "config.yaml", &configMap)
	read(t, files, "disruption.yaml", &budget)
	pod := deployment.Spec.Template.Spec
	gate := pod.Containers[0]

	secrets := map[string]string{}
	for _, v := range gate.Env {
		if v.Value != "" || v.ValueFrom == nil || v.ValueFrom.SecretKeyRef == nil {
			t.Errorf("%s is no reference to a secret", v.Name)
			continue
		}
		secrets[v.Name] = v.ValueFrom.SecretKeyRef.Name + "/" + v.ValueFrom.SecretKeyRef.Key
	}
	if want := map[string]string{"REDIS_URL": "taskgate/url", "STATE_KEY": "taskgate/state-key", "TOKEN": "mcp-server/token"}; !maps.Equal(secrets, want) {
		t.Errorf("the secrets are %v", secrets)
	}
	c := loadConfig(t, configMap.Data["taskgate.yaml"])
	if c.Store != "redis://redis:6379" || len(c.StateKeys) != 1 || len(c.Upstreams) != 1 {
		t.Errorf("the configuration is\n%s", configMap.Data["taskgate.yaml"])
	}
	if got, want := time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, c.DrainDelay+c.DrainTimeout+10*time.Second; got < want {
		t.Errorf("a pod has %v to stop, and needs %v", got, want)
	}
	// docs/operations.md, "Memory"; a process has 4000 calls besides.
	if got, want := gate.Resources.Limits.Memory().Value(), int64(3*c.MaxBytesInFlight+60*config.MiB+4000*50_000); got < want {
		t.Errorf("a pod has %d bytes of memory, and needs %d", got, want)
	}
	if *deployment.Spec.Replicas != 3 || budget.Spec.MaxUnavailable.IntValue() != 1 || gate.Image != "registry.example.com/taskgate:v0.1.0" {
		t.Errorf("%d replicas, at most %v away, of %s", *deployment.Spec.Replicas, budget.Spec.MaxUnavailable, gate.Image)
	}
	if !maps.Equal(budget.Spec.Selector.MatchLabels, deployment.Spec.Selector.MatchLabels) {
		t.Errorf("the budget is for %v, the pods are %v", budget.Spec.Selector, deployment.Spec.Selector)
	}
	if n := len(pod.Volumes); n != 2 || pod.Volumes[1].Secret.SecretName != "taskgate-files" || len(gate.VolumeMounts) != 2 || gate.VolumeMounts[1].MountPath != "/etc/secrets" {
		t.Errorf("the files are %v at %v", pod.Volumes, gate.VolumeMounts)
	}
	ports := map[string]string{}
	for _, p := range gate.Ports {
		ports[p.Name] = fmt.Sprintf(":%d", p.ContainerPort)
	}
	if ports["mcp"] != c.Listen || ports["admin"] != c.Admin {
		t.Errorf("the ports are %v, the configuration has %s and %s", ports, c.Listen, c.Admin)
	}
	for probe, path := range map[*core.Probe]string{
		gate.StartupProbe: "/readyz", gate.ReadinessProbe: "/readyz?exclude=store&exclude=upstreams", gate.LivenessProbe: "/healthz",
	} {
		if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "admin" {
			t.Errorf("a probe asks %v, not %s", probe, path)
		}
	}
	checkMonitor(t, files, deployment.Spec.Selector.MatchLabels)
}

// checkMonitor: the ServiceMonitor finds the one service that has the port of metrics.
func checkMonitor(t *testing.T, files map[string]string, pods map[string]string) {
	t.Helper()
	var monitor struct {
		Spec struct {
			Selector  struct{ MatchLabels map[string]string }
			Endpoints []struct{ Port string }
		}
	}
	if err := yaml.Unmarshal([]byte(files["taskgate/templates/servicemonitor.yaml"]), &monitor); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, text := range strings.Split(files["taskgate/templates/service.yaml"], "\n---\n") {
		var service core.Service
		if err := yaml.UnmarshalStrict([]byte(text), &service); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(service.Spec.Selector, pods) {
			t.Errorf("%s sends to %v", service.Name, service.Spec.Selector)
		}
		selected := true
		for k, v := range monitor.Spec.Selector.MatchLabels {
			selected = selected && service.Labels[k] == v
		}
		has := slices.ContainsFunc(service.Spec.Ports, func(p core.ServicePort) bool { return p.Name == monitor.Spec.Endpoints[0].Port })
		if selected != has {
			t.Errorf("%s: selected %t, has the port %t", service.Name, selected, has)
		}
		if selected {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the monitor finds %d services", found)
	}
}

// TestChartWithoutRedis: one replica needs none, and several are refused.
func TestChartWithoutRedis(t *testing.T) {
	const one = "image: {repository: r}\nconfig: {upstreams: [{name: mcp, path: /mcp, url: 'http://mcp:1/mcp'}]}\n"
	files, err := render(t, one)
	if err != nil {
		t.Fatal(err)
	}
	var configMap core.ConfigMap
	read(t, files, "config.yaml", &configMap)
	if c := loadConfig(t, configMap.Data["taskgate.yaml"]); c.Store != config.StoreEmbedded {
		t.Errorf("the store is %s", c.Store)
	}
	for _, file := range []string{"disruption", "servicemonitor"} {
		if text, ok := files["taskgate/templates/"+file+".yaml"]; ok {
			t.Errorf("there is\n%s", text)
		}
	}
	for given, want := range map[string]string{one + "replicas: 2": "set redis.secret", "replicas: 1": "where is the image?"} {
		if _, err := render(t, given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// read decodes a rendered file; what its kind does not have is a mistake.
func read(t *testing.T, files map[string]string, name string, into any) {
	t.Helper()
	text, ok := files["taskgate/templates/"+name]
	if !ok {
		t.Fatalf("nothing is rendered of %s", name)
	}
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
}

// loadConfig reads a configuration as a pod would.
func loadConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	t.Setenv("REDIS_URL", "redis://redis:6379")
	t.Setenv("STATE_KEY", strings.Repeat("QUJD", 11)[:43]+"=")
	t.Setenv("TOKEN", "secret")
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c
}
