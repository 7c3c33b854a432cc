// Draws panels of a dashboard with the components of Grafana, from answers of Prometheus.
import {
  applyFieldOverrides,
  createTheme,
  dateTime,
  FieldColorModeId,
  FieldConfigOptionsRegistry,
  FieldType,
  LoadingState,
  ThemeContext,
  toDataFrame,
} from "@grafana/data";
import { GlobalStyles, PanelChrome, TimeSeries } from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";

const COLUMNS = 24;
const ROW_PX = 38;
const GAP_PX = 8;
// What Grafana's own panel uses where a dashboard says nothing.
const DEFAULTS = {
  axisBorderShow: false,
  axisCenteredZero: false,
  axisColorMode: "text",
  axisLabel: "",
  axisPlacement: "auto",
  barAlignment: 0,
  barWidthFactor: 0.6,
  drawStyle: "line",
  fillOpacity: 0,
  gradientMode: "none",
  hideFrom: { legend: false, tooltip: false, viz: false },
  insertNulls: false,
  lineInterpolation: "linear",
  lineStyle: { fill: "solid" },
  lineWidth: 1,
  pointSize: 5,
  scaleDistribution: { type: "linear" },
  showPoints: "auto",
  showValues: false,
  spanNulls: false,
  stacking: { group: "A", mode: "none" },
  thresholdsStyle: { mode: "off" },
};
// Options that a dashboard can set, and that are taken as they are.
const OPTIONS = ["color", "decimals", "max", "min", "noValue", "thresholds", "unit"];
const registry = new FieldConfigOptionsRegistry(() =>
  OPTIONS.map((id) => ({ id, path: id, name: id, process: (value) => value, shouldApply: () => true })),
);

function legend(format, labels) {
  return format.replace(/\{\{(\w+)\}\}/g, (_, name) => labels[name] ?? "");
}

function framesOf(panel, { answers, stepMs }, theme) {
  const custom = { ...DEFAULTS, ...panel.fieldConfig.defaults.custom };
  const fieldConfig = structuredClone(panel.fieldConfig);
  fieldConfig.defaults.color ??= { mode: FieldColorModeId.PaletteClassic };
  const data = panel.targets.flatMap((target) =>
    answers[target.expr].map(({ metric, values }) =>
      toDataFrame({
        refId: target.refId,
        fields: [
          {
            name: "Time",
            type: FieldType.time,
            config: { interval: stepMs },
            values: values.map(([seconds]) => seconds * 1000),
          },
          {
            name: "Value",
            type: FieldType.number,
            labels: metric,
            values: values.map(([, value]) => (Number.isFinite(+value) ? +value : null)), // as Grafana
            config: { displayNameFromDS: legend(target.legendFormat, metric) },
          },
        ],
      }),
    ),
  );
  const frames = applyFieldOverrides({
    data,
    fieldConfig,
    fieldConfigRegistry: registry,
    replaceVariables: (text) => text,
    theme,
    timeZone: "utc",
  });
  for (const field of frames.flatMap((frame) => frame.fields)) field.config.custom = custom;
  return frames;
}

function Panel({ panel, data, theme, width, height }) {
  const frames = framesOf(panel, data, theme);
  const range = { from: dateTime(data.fromMs), to: dateTime(data.toMs) };
  const empty = {
    color: theme.colors.text.secondary,
    paddingTop: height / 3,
    textAlign: "center",
  };
  return (
    <PanelChrome title={panel.title} width={width} height={height} loadingState={LoadingState.Done}>
      {(innerWidth, innerHeight) =>
        frames.length === 0 ? (
          <div style={empty}>{panel.fieldConfig.defaults.noValue ?? "No data"}</div>
        ) : (
          <TimeSeries
            frames={frames}
            structureRev={1}
            width={innerWidth}
            height={innerHeight}
            timeZone="utc"
            timeRange={{ ...range, raw: range }}
            legend={panel.options.legend}
          />
        )
      }
    </PanelChrome>
  );
}

function Dashboard({ dashboard, data, theme, widthPx }) {
  const unit = (widthPx - GAP_PX) / COLUMNS;
  const bottom = Math.max(...dashboard.panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <div style={{ position: "relative", height: bottom * ROW_PX + GAP_PX }}>
      {dashboard.panels.map((panel) => {
        const { x, y, w, h } = panel.gridPos;
        const place = { position: "absolute", left: GAP_PX + x * unit, top: GAP_PX + y * ROW_PX };
        return (
          <div key={panel.id} style={place}>
            <Panel
              panel={panel}
              data={data}
              theme={theme}
              width={w * unit - GAP_PX}
              height={h * ROW_PX - GAP_PX}
            />
          </div>
        );
      })}
    </div>
  );
}

const { dashboard, data, mode, widthPx } = window.shown;
const theme = createTheme({ colors: { mode } });
document.body.style = `margin: 0; background: ${theme.colors.background.canvas}`;
createRoot(document.getElementById("root")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Dashboard dashboard={dashboard} data={data} theme={theme} widthPx={widthPx} />
  </ThemeContext.Provider>,
);
// The plots are drawn a frame after they are in the page.
setTimeout(() => {
  document.documentElement.dataset.ready = "1";
}, 1000);
