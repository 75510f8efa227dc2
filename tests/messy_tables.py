"""Tables as hospitals have them: twelve sites of 6 to 800 rows, and everything that goes wrong in tables."""

import numpy as np
import pandas as pd

SIZES = (800, 420, 260, 150, 90, 60, 40, 30, 20, 12, 8, 6)
NAMES = (
    *("Köln", "Zürich", "St. Gallen", "Münster", "Århus", "Reims"),
    *("Łódź", "Graz", "Lübeck", "Gävle", "Białystok", "Fürth"),
)


def hospitals(seed=0):
    """A clean table, one row per stay, and what each column really is."""
    rng = np.random.default_rng(seed)
    n = sum(SIZES)
    site = np.repeat(np.arange(12), SIZES)
    age = rng.normal(60 + 3 * (site % 4), 12, n).clip(18, 95).round()
    bmi = rng.normal(27, 4, n).round(1)
    saturation = rng.normal(95, 3, n).clip(70, 100).round()
    costs = rng.lognormal(8, 0.6, n).round(2)
    smoker = rng.random(n) < 0.3
    ward = rng.choice(["surgery", "medicine", "oncology"], n)
    admitted = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 1000, n), unit="D")
    log_odds = 0.06 * (age - 62) + 0.15 * (bmi - 27) + 1.2 * smoker - 0.25 * (saturation - 95) - 0.6 + 0.4 * (site % 3)
    readmitted = rng.random(n) < 1 / (1 + np.exp(-log_odds))
    return pd.DataFrame(
        {
            "Klinik": np.array(NAMES)[site],
            "Fallnummer": rng.permutation(n) + 100_000,
            "Alter": age,
            "BMI": bmi,
            "Sättigung": saturation,
            "Kosten": costs,
            "Raucher": smoker,
            "Station": ward,
            "Aufnahme": admitted,
            "Region": np.array(["north", "south"])[site % 2],
            "Hausname": [f"Haus {one}" for one in site],
            "Bemerkung": [
                " ".join(rng.choice(["patient", "war", "stabil", "kam", "spät", "ohne", str(k)], 6)) for k in range(n)
            ],
            "Land": "X",
            "Wiederaufnahme": readmitted,
            "Abrechnungscode": np.where(readmitted, "W2", "E1"),
        }
    )


def messy(table, seed=0):
    """The same as it is written down: percentages, decimal commas, gaps, slips, dates, words."""
    rng = np.random.default_rng(seed)
    n = len(table)

    def some(share):
        return rng.random(n) < share

    texts = pd.DataFrame(index=table.index)
    texts["Klinik"] = table["Klinik"]
    texts["Fallnummer"] = table["Fallnummer"].astype(str)
    texts["Alter"] = table["Alter"].astype(int).astype(str).mask(some(0.01), "unbekannt")
    texts["BMI"] = table["BMI"].map("{:.1f}".format).str.replace(".", ",").mask(some(0.08), "")
    texts["Sättigung"] = table["Sättigung"].map("{:.0f}%".format)
    texts["Kosten"] = table["Kosten"].map("{:,.2f}".format).str.translate(str.maketrans(",.", ".,")) + " €"
    texts["Raucher"] = table["Raucher"].map({True: "ja", False: "nein"}).mask(some(0.03), "")
    texts["Station"] = table["Station"].mask(some(0.1), table["Station"].str.upper()).mask(some(0.05), "NA")
    texts["Aufnahme"] = table["Aufnahme"].dt.strftime("%d.%m.%Y")
    for name in ("Region", "Hausname", "Bemerkung", "Land", "Abrechnungscode"):
        texts[name] = table[name]
    texts["Wiederaufnahme"] = table["Wiederaufnahme"].map({True: "Ja", False: "nein"}).mask(some(0.04), "")
    return texts
